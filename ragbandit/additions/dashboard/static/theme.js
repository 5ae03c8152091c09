// Light or dark: the reader's choice, kept in this browser; without one the system's. Runs before the page is drawn.
(() => {
  const root = document.documentElement;
  const kept = () => { try { return localStorage.getItem("ragbandit-theme"); } catch { return null; } };
  const put = (theme) => { if (theme === "light" || theme === "dark") root.dataset.theme = theme; };
  put(kept());
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    if (!button) return;
    const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    const say = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Change to ${dark() ? "light" : "dark"} colours`); };
    button.hidden = false;
    button.addEventListener("click", () => {
      put(dark() ? "light" : "dark");
      try { localStorage.setItem("ragbandit-theme", root.dataset.theme); } catch { /* it lasts until the page is left */ }
      say();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", say);
    say();
  });
})();
