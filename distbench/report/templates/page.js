(() => {
  "use strict";
  const root = document.documentElement;
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const dark = Object.entries(read("dark-colours"));
  const media = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (media.matches ? "dark" : "light")) === "dark";
  const drawn = new Map();

  // Charts hold the colours of the light page; on a dark page each is swapped for its partner before the chart is made.
  const chartOf = (name) => {
    let text = document.getElementById("chart-" + name).textContent;
    if (isDark()) for (const [light, other] of dark) text = text.replaceAll(light, other);
    return JSON.parse(text);
  };

  // The chart library is most of the file: it is run when the first chart is near, so that the words stand there at once.
  function library() {
    if (!window.Plotly) {
      const script = document.createElement("script");
      script.textContent = document.getElementById("plotly").textContent;
      document.head.append(script);
    }
    return window.Plotly;
  }

  const narrow = (layout) => {
    if (innerWidth > 640) return layout;
    return { ...layout, margin: { ...layout.margin, l: 40, r: 6 }, font: { ...layout.font, size: 11 } };
  };

  function draw(box) {
    const { data, layout } = chartOf(box.dataset.chart);
    const options = { displayModeBar: false, responsive: true, displaylogo: false, showTips: false };
    const made = library().react(box, data, narrow(layout), options);
    drawn.set(box, made);
    return made;
  }

  const boxes = [...document.querySelectorAll("[data-chart]")];
  for (const box of boxes) box.style.minHeight = box.dataset.height + "px";
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { near.unobserve(entry.target); draw(entry.target); }
  }, { rootMargin: "400px" });
  const watch = () => setTimeout(() => boxes.forEach((box) => near.observe(box)), 30);
  if (document.readyState === "complete") watch(); else addEventListener("load", watch);
  const drawAll = () => Promise.all(boxes.map((box) => { near.unobserve(box); return drawn.get(box) || draw(box); }));
  addEventListener("beforeprint", drawAll);

  const button = document.getElementById("theme");
  const label = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  function setTheme(theme) {
    root.dataset.theme = theme;
    try { localStorage.setItem("distbench-theme", theme); } catch { /* storage is off for files in some browsers */ }
    label();
    for (const box of drawn.keys()) draw(box);
  }
  try {
    const kept = localStorage.getItem("distbench-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* as above */ }
  label();
  button.addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
  media.addEventListener("change", () => { label(); for (const box of drawn.keys()) draw(box); });
  addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName || "");
    if (event.key === "t" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) setTheme(isDark() ? "light" : "dark");
  });

  const links = new Map([...document.querySelectorAll(".bar nav a")].map((a) => [a.hash.slice(1), a]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const a of links.values()) a.removeAttribute("aria-current");
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-25% 0px -65% 0px" });
  for (const id of links.keys()) { const section = document.getElementById(id); if (section) seen.observe(section); }

  window.distbench = { drawAll, setTheme, read };
})();
