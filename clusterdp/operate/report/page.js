"use strict";
// Draws the curves of the page with uPlot. All else of the page stands without it.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const figures = [...document.querySelectorAll(".chart")];
  const logarithmic = document.getElementById("log");
  const several = data.runs.length > 1;
  const drawn = new Map(); // figure -> its chart
  document.documentElement.classList.toggle("several", several);

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => (value == null ? "–" : String(+value.toPrecision(4)));
  const steps = (value) => (Number.isInteger(value) ? String(value) : "");

  // A line where a later attempt went on, in the colour of its run.
  const marks = (runs) => ({
    hooks: {
      drawClear: (chart) => {
        const { ctx, bbox } = chart;
        ctx.save();
        ctx.setLineDash([4, 4]);
        data.resumed.forEach((resumed, run) => {
          if (!runs.has(run)) return;
          ctx.globalAlpha = resumed.length > 10 ? 0.25 : 0.6;
          ctx.strokeStyle = several ? colour(`--c${run % 8}`) : colour("--quiet");
          for (const [, step] of resumed) {
            const x = chart.valToPos(step, "x", true);
            if (x < bbox.left || x > bbox.left + bbox.width) continue;
            ctx.beginPath();
            ctx.moveTo(x, bbox.top);
            ctx.lineTo(x, bbox.top + bbox.height);
            ctx.stroke();
          }
        });
        ctx.restore();
      },
    },
  });

  function series(line) {
    const again = line.again !== undefined;
    return {
      label: several ? data.runs[line.run] : "value",
      stroke: colour(`--c${line.run % 8}`),
      alpha: again ? 0.3 : 1,
      width: 1.5,
      dash: line.run >= 8 ? [6, 3] : undefined, // the colours begin anew
      class: again ? "again" : undefined,
      points: { show: line.x.length < 40 },
      value: (_, value) => short(value),
    };
  }

  function draw(figure) {
    const chart = data.charts[figure.dataset.chart];
    const plot = figure.querySelector(".plot");
    const lines = chart.lines.filter((line) => line.x.length);
    const log = logarithmic.checked && lines.every((line) => line.y.every((value) => value > 0));
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { show: false } };
    drawn.get(figure)?.destroy();
    drawn.set(
      figure,
      new uPlot(
        {
          width: plot.clientWidth,
          height: 230,
          plugins: [marks(new Set(lines.map((line) => line.run)))],
          cursor: { sync: { key: "step" }, points: { size: 6 } },
          scales: { x: { time: false }, y: { distr: log ? 3 : 1 } },
          axes: [
            { ...axis, size: 32, values: (_, ticks) => ticks.map(steps) },
            { ...axis, size: 64, values: (_, ticks) => ticks.map((value) => (value == null ? "" : short(value))) },
          ],
          series: [{ label: "step", value: (_, value) => (value == null ? "–" : String(value)) }, ...lines.map(series)],
        },
        uPlot.join(lines.map((line) => [line.x, line.y])),
        plot,
      ),
    );
  }

  const redraw = () => [...drawn.keys()].forEach(draw);
  // The first at once, the others when they come into view: a page may have hundreds.
  const seen = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting && !drawn.has(entry.target)).forEach((entry) => draw(entry.target)),
    { rootMargin: "400px" },
  );
  const sized = new ResizeObserver((entries) =>
    entries.forEach(({ target, contentRect }) => drawn.get(target.parentElement)?.setSize({ width: contentRect.width, height: 230 })),
  );
  figures.forEach((figure, i) => {
    if (i < 12) draw(figure);
    else seen.observe(figure);
    sized.observe(figure.querySelector(".plot"));
  });
  logarithmic?.addEventListener("change", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", () => figures.forEach(draw));
})();
