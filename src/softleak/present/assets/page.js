"use strict";
(() => {
  const HEIGHT = 250, LEFT = 46, RIGHT = 10, TOP = 30, BOTTOM = 30, MOST = 12, PRINTED = 12;
  const TICKS = [-1, -0.1, -0.01, 0, 0.01, 0.1, 1];
  const SVG = "http://www.w3.org/2000/svg";
  const data = JSON.parse(document.getElementById("data").textContent);

  const make = (tag, attributes, parent, text) => {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };
  const element = (tag, name, parent, text) => {
    const node = document.createElement(tag);
    if (name) node.className = name;
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };

  // Eq. 4: the label that a scalar t would mean.
  const labelAt = (view, t) => {
    const z = view.a.map((a, i) => a / t + view.b[i]);
    const top = Math.max(...z);
    const e = z.map((value) => Math.exp(value - top));
    const sum = e.reduce((s, value) => s + value, 0);
    return e.map((value, i) => value / sum - t * view.u[i]);
  };

  const power = (exponent) =>
    "10" + String(exponent).replace(/[-0-9]/g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);
  const signed = (text) => String(text).replace("-", "−");
  const written = (value) => {
    if (value === 0 || Math.abs(value) >= 1e-3) return signed(value.toPrecision(4));
    const exponent = Math.floor(Math.log10(Math.abs(value)));
    return signed((value / 10 ** exponent).toFixed(1)) + "·" + power(exponent);
  };

  // The grid is even in the cube root of t; a position on it is a number from 0 to its last.
  const gridOf = (view) => {
    const points = view.loss.length, step = (2 * view.reach) / points;
    const at = (i) => ((i + 0.5) * step - view.reach) ** 3;
    const position = (t) => (Math.cbrt(t) + view.reach) / step - 0.5;
    return { points, at, position };
  };

  const scalesOf = (view, grid, width) => {
    const x = (t) => LEFT + ((width - LEFT - RIGHT) * (grid.position(t) + 0.5)) / grid.points;
    const every = [...view.loss, ...view.near.map(([, loss]) => loss)].filter((loss) => loss > 0);
    const low = Math.floor(Math.log10(Math.max(Math.min(...every), 1e-9)));
    const high = Math.max(Math.ceil(Math.log10(Math.max(...every))), low + 1);
    const y = (loss) => {
      const along = (Math.log10(Math.max(loss, 10 ** low)) - low) / (high - low);
      return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * along;
    };
    return { x, y, low, high, width };
  };

  const drawAxes = (svg, scale) => {
    const step = Math.max(1, Math.round((scale.high - scale.low) / 4));
    for (let p = scale.high; p >= scale.low; p -= step) {
      const y = scale.y(10 ** p);
      make("line", { class: "axis", x1: LEFT, x2: scale.width - RIGHT, y1: y, y2: y }, svg);
      make("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, svg, power(p));
    }
    make("text", { x: 4, y: 12 }, svg, "loss");
    for (const t of TICKS) {
      make("text", { x: scale.x(t), y: HEIGHT - 10, "text-anchor": "middle" }, svg, signed(t));
    }
    make("text", { x: scale.width - 2, y: HEIGHT - 10, "text-anchor": "end", "font-style": "italic" }, svg, "t");
  };

  // Where no entry of the label is negative: only there a label is a probability distribution.
  const drawValid = (svg, view, grid, scale) => {
    const box = { class: "valid", y: TOP, height: HEIGHT - TOP - BOTTOM };
    let start = null;
    for (let i = 0; i <= grid.points; i += 1) {
      const fine = i < grid.points && Math.min(...labelAt(view, grid.at(i))) > -1e-5;
      if (fine && start === null) start = i;
      if (!fine && start !== null) {
        const from = scale.x(grid.at(start - 0.5)), to = scale.x(grid.at(i - 0.5));
        make("rect", { ...box, x: from, width: to - from }, svg);
        start = null;
      }
    }
  };

  const drawCurve = (svg, view, grid, scale) => {
    const points = view.loss.map((loss, i) => [grid.at(i), loss]).concat(view.near).sort((p, q) => p[0] - q[0]);
    for (const sign of [-1, 1]) {
      const path = points.filter(([t]) => Math.sign(t) === sign);
      const drawn = path.map(([t, loss]) => scale.x(t).toFixed(1) + "," + scale.y(loss).toFixed(1));
      make("polyline", { class: "curve", points: drawn.join(" ") }, svg);
    }
  };

  const drawMarks = (svg, view, scale) => {
    for (const mark of view.marks) {
      const x = scale.x(mark.t), from = scale.x(mark.low), to = scale.x(mark.high);
      const box = { class: "certified-range", y: TOP, height: HEIGHT - TOP - BOTTOM };
      if (to - from > 2) make("rect", { ...box, x: from, width: to - from }, svg);
      make("line", { class: "certified", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }, svg);
      make("path", { class: "certified-mark", d: `M${x - 6},${TOP - 9} L${x + 6},${TOP - 9} L${x},${TOP} Z` }, svg);
    }
  };

  // One row a class; where there are many, those that the first label has on top.
  const makeBars = (holder, view, start) => {
    let shown = view.names.map((_, i) => i);
    if (shown.length > MOST) {
      const label = labelAt(view, start);
      shown = shown.sort((i, j) => label[j] - label[i]).slice(0, MOST);
    }
    return shown.map((i) => {
      element("div", "bar-name", holder, view.names[i]).title = view.names[i];
      const track = element("div", "bar-track", holder);
      const fill = element("span", "bar-fill", track);
      element("span", "bar-zero", track).style.left = "25%";
      return { index: i, fill, value: element("div", "bar-value", holder) };
    });
  };
  const moveBars = (bars, label) => {
    for (const { index, fill, value } of bars) {
      const entry = label[index], size = Math.min(Math.max(entry, -1 / 3), 1) * 75;
      fill.style.left = (size < 0 ? 25 + size : 25) + "%";
      fill.style.width = Math.abs(size) + "%";
      fill.classList.toggle("negative", entry < -5e-5);
      value.textContent = (entry < -5e-5 ? "−" : "") + Math.abs(entry).toFixed(4);
    }
  };

  const words = (view, t, loss, label) => {
    const slack = 1e-9 * Math.abs(t);
    const certified = view.marks.some((m) => t >= m.low - slack && t <= m.high + slack);
    const verdict = certified
      ? view.unique ? "the certified solution" : "one of the certified solutions"
      : Math.min(...label) < -1e-4 ? "impossible, an entry is negative" : "a distribution, but not the one the update certifies";
    return `t = ${written(t)}, loss ${written(loss)}: ${verdict}.`;
  };

  const show = (section) => {
    const view = data[section.dataset.view], grid = gridOf(view);
    const [plot, slider, readout] = [".plot", "input", ".readout"].map((s) => section.querySelector(s));
    const lowest = view.loss.indexOf(Math.min(...view.loss));
    let t = view.marks.length ? view.marks[0].t : grid.at(lowest);
    const bars = makeBars(section.querySelector(".moving"), view, t);
    let cursor, dot, scale;

    const lossAt = () => {
      const near = view.near.find(([other]) => other === t);
      return near ? near[1] : view.loss[Math.min(Math.max(Math.round(grid.position(t)), 0), grid.points - 1)];
    };
    const update = () => {
      const label = labelAt(view, t), loss = lossAt(), x = scale.x(t);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", scale.y(loss));
      moveBars(bars, label);
      readout.textContent = words(view, t, loss, label);
      slider.setAttribute("aria-valuetext", readout.textContent);
    };
    const draw = () => {
      const width = Math.max(plot.clientWidth, 240);
      scale = scalesOf(view, grid, width);
      const svg = make("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": "the loss over the scalar t" });
      drawValid(svg, view, grid, scale);
      drawAxes(svg, scale);
      drawCurve(svg, view, grid, scale);
      drawMarks(svg, view, scale);
      cursor = make("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM }, svg);
      dot = make("circle", { class: "dot", r: 5 }, svg);
      plot.replaceChildren(svg);
      update();
    };
    const jump = (to) => {
      t = to;
      slider.value = Math.round(grid.position(t));
      update();
    };

    [slider.min, slider.max, slider.step] = [0, grid.points - 1, 1];
    slider.value = Math.round(grid.position(t));
    slider.addEventListener("input", () => {
      const i = Number(slider.value);
      const mark = view.marks.find((m) => Math.round(grid.position(m.t)) === i);
      t = mark ? mark.t : grid.at(i);
      update();
    });
    view.marks.slice(0, 4).forEach((mark, number) => {
      const text = view.marks.length > 1 ? `Solution ${number + 1}` : "To the certified solution";
      const button = element("button", "", section.querySelector(".jumps"), text);
      button.type = "button";
      button.addEventListener("click", () => jump(mark.t));
    });
    draw();
    let drawnAt = plot.clientWidth;
    new ResizeObserver(() => {
      if (plot.clientWidth === drawnAt) return;
      drawnAt = plot.clientWidth;
      draw();
    }).observe(plot);
  };

  // A curve is drawn when its section is opened for the first time.
  const drawn = new WeakSet();
  const drawWithin = (share) => {
    for (const section of share.querySelectorAll("[data-view]")) {
      if (!drawn.has(section)) show(section);
      drawn.add(section);
    }
  };
  const shares = [...document.querySelectorAll("details.share")];
  for (const share of shares) {
    share.addEventListener("toggle", () => share.open && drawWithin(share));
    if (share.open) drawWithin(share);
  }

  // A link to a share opens it, and so does an address that names it.
  const openNamed = () => {
    const named = document.getElementById(location.hash.slice(1));
    if (!named?.matches("details.share")) return;
    named.open = true;
    named.scrollIntoView();
    named.querySelector("summary").focus({ preventScroll: true });
  };
  addEventListener("hashchange", openNamed);
  document.querySelector(".shares")?.addEventListener("click", (event) => {
    if (event.target.closest("a")?.hash === location.hash) openNamed();
  });
  openNamed();
  for (const button of document.querySelectorAll("[data-fold]")) {
    button.parentElement.hidden = false;
    button.addEventListener("click", () => {
      for (const share of shares) share.open = button.dataset.fold === "open";
    });
  }

  // Print every share if they are few, else those that are open.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = shares.length <= PRINTED ? shares.filter((share) => !share.open) : [];
    for (const share of closed) share.open = true;
    for (const share of shares) if (share.open) drawWithin(share);
  });
  addEventListener("afterprint", () => {
    for (const share of closed) share.open = false;
  });

  // Thumbnails are the pictures of the sections: they are in the page once.
  const thumbnail = (source, holder) => {
    const image = element("img", "");
    [image.src, image.alt, image.width, image.height, image.loading] = [source, "", 40, 40, "lazy"];
    holder.prepend(image);
  };
  for (const share of shares) {
    const picture = share.querySelector(".pictures img");
    if (!picture) continue;
    thumbnail(picture.src, share.querySelector("summary"));
    const link = document.querySelector(`.shares a[href="#${share.id}"]`);
    if (link) thumbnail(picture.src, link.parentElement);
  }

  // The table of all shares: a click on a heading sorts, the two fields filter.
  const table = document.querySelector(".shares");
  const cellValue = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
  };
  const ordered = new Intl.Collator("en", { numeric: true });
  const sortBy = (heading, column) => {
    const numeric = heading.dataset.sort === "number", before = heading.getAttribute("aria-sort");
    const down = before ? before === "ascending" : numeric;
    const rows = [...table.tBodies[0].rows].map((row) => [cellValue(row, column), row]);
    rows.sort(([p], [q]) => (down ? -1 : 1) * (numeric ? p - q : ordered.compare(p, q)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  };
  // Of many rows the first are laid out; the rest on demand, when they are found, and in print.
  let limit = table?.querySelector("tr[hidden]") ? table.querySelectorAll("tbody tr:not([hidden])").length : Infinity;
  const filterRows = (bar) => {
    const [field, choice, status] = ["input", "select", ".found"].map((s) => bar.querySelector(s));
    const more = document.querySelector(".more");
    const texts = new Map([...table.tBodies[0].rows].map((row) => [row, row.textContent.toLowerCase()]));
    const update = () => {
      const wanted = field.value.trim().toLowerCase();
      let count = 0;
      for (const row of table.tBodies[0].rows) {
        const kept = texts.get(row).includes(wanted) && (!choice.value || row.dataset.leaks.split(" ").includes(choice.value));
        count += kept;
        row.hidden = !kept || count > limit;
      }
      status.textContent = count === texts.size ? `${count} updates` : `${count} of ${texts.size} updates`;
      more.hidden = count <= limit;
      more.textContent = `Show all ${count} rows`;
    };
    more.addEventListener("click", () => {
      limit = Infinity;
      update();
    });
    bar.hidden = false;
    bar.addEventListener("input", update);
    addEventListener("beforeprint", () => more.hidden || more.click());
    update();
    return update;
  };
  if (table) {
    const update = filterRows(document.querySelector(".filter"));
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      const button = element("button", "", undefined, heading.textContent);
      button.type = "button";
      button.addEventListener("click", () => {
        sortBy(heading, column);
        update();
      });
      heading.replaceChildren(button);
    });
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Press Ctrl+C";
      }
    });
  }
})();
