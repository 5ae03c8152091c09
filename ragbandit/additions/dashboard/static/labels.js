// One key for each button: r right, w wrong, s skip.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  document.querySelector(`button[data-key="${CSS.escape(event.key.toLowerCase())}"]`)?.click();
});
