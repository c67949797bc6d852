// Draws the page's charts in the colours of its theme, again whenever the theme changes or the page is printed.
(function () {
  "use strict";
  const PRINT_WIDTH = { single: 640, half: 310 }; // CSS pixels that fit the printed columns
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const places = Array.from(document.querySelectorAll(".chart"));
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const print = window.matchMedia("print");
  const touch = window.matchMedia("(pointer: coarse)");
  const hidden = new Set();
  const config = {
    displaylogo: false, responsive: true, displayModeBar: "hover", plotlyServerURL: "", showTips: false,
    modeBarButtons: [["toImage", "resetScale2d"]], toImageButtonOptions: { format: "svg" },
  };

  // A copy with every colour that names a variable of the style replaced by the variable's value.
  function coloured(value, key, style) {
    if (Array.isArray(value)) {
      return value.map((one) => (one !== null && typeof one === "object" ? coloured(one, key, style) : one));
    }
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, coloured(one, name, style)]));
    }
    const named = /color$/.test(key) && /^var\((--[\w-]+)\)$/.exec(value);
    return named ? style.getPropertyValue(named[1]).trim() : value;
  }

  function draw(printing) {
    const root = document.documentElement;
    root.classList.toggle("printing", printing);
    const style = getComputedStyle(root);
    for (const place of places) {
      const figure = coloured(figures[place.dataset.chart], "", style);
      for (const trace of figure.data) {
        trace.visible = !hidden.has(trace.legendgroup);
      }
      if (printing) {
        figure.layout.width = place.closest(".single") ? PRINT_WIDTH.single : PRINT_WIDTH.half;
      } else {
        figure.layout.autosize = true;
      }
      if (touch.matches) {
        figure.layout.dragmode = false; // a finger on a chart scrolls the page
      }
      window.Plotly.react(place, figure.data, figure.layout, config);
    }
  }

  function listen(button) {
    button.addEventListener("click", function () {
      const shown = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!shown));
      const name = "series-" + button.dataset.place;
      shown ? hidden.add(name) : hidden.delete(name);
      draw(print.matches);
    });
  }

  document.querySelectorAll(".legend button").forEach(listen);
  dark.addEventListener("change", () => draw(print.matches));
  print.addEventListener("change", () => draw(print.matches));
  window.addEventListener("beforeprint", () => draw(true));
  window.addEventListener("afterprint", () => draw(false));
  draw(print.matches);
})();
