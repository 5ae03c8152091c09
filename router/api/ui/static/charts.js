// Lines over time, drawn of the table below each chart: what a script shows and what is read is the same.
(() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const written = {
    percent: (v) => `${+(100 * v).toPrecision(3)} %`,
    seconds: (v) => v && v < 1 ? `${+(1000 * v).toPrecision(3)} ms` : v >= 120 ? `${+(v / 60).toPrecision(3)} min` : `${+v.toPrecision(3)} s`,
    number: (v) => Math.abs(v) >= 1000 ? Math.round(v).toLocaleString("en") : `${+v.toPrecision(3)}`,
  };
  const read = (table) => {
    const lines = [...table.tHead.rows[0].cells].slice(1).map((cell) => ({
      name: cell.textContent.trim(),
      colour: `--arm-${(cell.querySelector(".mark").getAttribute("class").match(/arm-(\d)/) || [0, 0])[1]}`,
      shape: cell.querySelector("path").getAttribute("d"),
    }));
    const rows = [...table.tBodies[0].rows];
    const times = rows.map((row) => Date.parse(row.cells[0].querySelector("time").dateTime) / 1000);
    const values = lines.map((_, place) => rows.map((row) => {
      const value = row.cells[place + 1].dataset.value;
      return value === undefined ? null : Number(value);
    }));
    return { lines, data: [times, ...values] };
  };
  // Shapes along each line, at most a dozen, so that lines are told apart without their colours.
  const shapes = (lines) => (u, place) => {
    if (!place) return;
    const path = new Path2D(lines[place - 1].shape);
    const values = u.data[place], every = Math.max(1, Math.ceil(values.length / 12)), size = devicePixelRatio * 0.75;
    u.ctx.save();
    u.ctx.fillStyle = css(lines[place - 1].colour);
    values.forEach((value, at) => {
      const alone = values[at - 1] == null && values[at + 1] == null;
      if (value === null || (!alone && at % every !== (place * 2) % every)) return;
      u.ctx.save();
      u.ctx.translate(u.valToPos(u.data[0][at], "x", true) - 6 * size, u.valToPos(value, "y", true) - 6 * size);
      u.ctx.scale(size, size);
      u.ctx.fill(path);
      u.ctx.restore();
    });
    u.ctx.restore();
  };
  const draw = (figure) => {
    const box = figure.querySelector(".chart"), { lines, data } = read(figure.querySelector("table"));
    const unit = written[figure.dataset.unit], ink = css("--soft"), grid = { stroke: css("--grid"), width: 1 };
    box.replaceChildren();
    const font = '12px system-ui, "DejaVu Sans", sans-serif';
    const chart = new uPlot({
      width: box.clientWidth, height: 230, tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "UTC"),
      legend: { show: false }, cursor: { show: false },
      scales: { y: { range: (_, low, high) => {
        const least = Math.min(0, low), most = high > least ? high : least + (figure.dataset.unit === "percent" ? 0.1 : 1);
        return [least, most + 0.08 * (most - least)];
      } } },
      axes: [
        { stroke: ink, grid, ticks: grid, font, space: 70, values: [
          [86400 * 28, "{YYYY}-{MM}", null, null, null, null, null, null, 1],
          [86400, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1],
          [60, "{HH}:{mm}", "\n{YYYY}-{MM}-{DD}", null, "\n{MM}-{DD}", null, null, null, 1],
        ] },
        { stroke: ink, grid, ticks: grid, font, size: 62, values: (_, ticks) => ticks.map(unit) },
      ],
      series: [{}, ...lines.map((line) => ({ label: line.name, stroke: css(line.colour), width: 2, points: { show: false }, spanGaps: true }))],
      hooks: { drawSeries: [shapes(lines)] },
    }, data, box);
    return chart;
  };
  const start = () => {
    const figures = [...document.querySelectorAll("figure.over-time")];
    const all = () => figures.forEach(draw);
    all();
    document.addEventListener("themechange", all);
    let width = innerWidth;
    addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; all(); } });
  };
  start();
})();
