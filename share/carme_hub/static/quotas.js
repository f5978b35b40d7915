// Draws use per day as bars: data is [[epoch seconds…], [GPU-hours…]], in the page's colours and the policy's time zone.
(() => {
  const place = document.getElementById("chart");
  const source = document.getElementById("chart-data");
  if (!place || !source || !window.uPlot) return;
  const { zone, data } = JSON.parse(source.textContent);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const day = new Intl.DateTimeFormat("en-GB", { timeZone: zone, day: "numeric", month: "short" });
  let plot = null;
  let width = 0;
  const draw = () => {
    if (plot) plot.destroy();
    width = place.clientWidth;
    const text = colour("--bs-body-color"), grid = colour("--bs-border-color"), bar = colour("--bs-primary");
    plot = new uPlot({
      width,
      height: 180,
      legend: { show: false },
      cursor: { show: false },
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), zone),
      scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [
        { stroke: text, grid: { show: false }, ticks: { stroke: grid }, space: 70,
          values: (_plot, times) => times.map((at) => day.format(new Date(at * 1000))),
          incrs: [1, 2, 5, 10, 30].map((days) => days * 86400) },
        { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { show: false }, size: 56,
          values: (_plot, hours) => hours.map((each) => `${each} h`) },
      ],
      series: [{}, { paths: uPlot.paths.bars({ size: [0.7, 40] }), fill: bar, stroke: bar, width: 0, points: { show: false } }],
    }, data, place);
  };
  draw();
  window.addEventListener("resize", () => { if (place.clientWidth !== width) draw(); });
  new MutationObserver(draw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-bs-theme"] });
})();
