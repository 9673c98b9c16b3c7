"use strict";
(() => {
  const graphs = JSON.parse(document.getElementById("data").textContent);
  const details = document.getElementById("details");
  const stage = document.querySelector(".stage");
  const found = document.getElementById("found");
  const MOST_FOUND = 30;
  const at = { before: 0, after: 0 };
  let view = "both";

  for (const key of Object.keys(graphs)) {
    const graph = graphs[key];
    graph.numbers = new Map(graph.nodes.map((node, number) => [node.name, number]));
    graph.readers = graph.nodes.map(() => []);
    graph.nodes.forEach((node, number) => {
      for (const source of [...node.inputs, ...node.controls]) {
        const place = find(graph, source);
        if (place !== undefined) graph.readers[place].push(number);
      }
    });
  }

  function find(graph, edge) {
    const whole = graph.numbers.get(edge);
    return whole !== undefined ? whole : graph.numbers.get(edge.replace(/:\d+$/, ""));
  }

  function made(tag, text) {
    const element = document.createElement(tag);
    element.textContent = text;
    return element;
  }

  function link(text, action) {
    const button = made("button", text);
    button.type = "button";
    button.addEventListener("click", action);
    return button;
  }

  function other(key) {
    return key === "before" ? "after" : "before";
  }

  function turn(to) {
    view = to;
    stage.classList.toggle("both", view === "both");
    for (const key of Object.keys(graphs)) document.getElementById(key).hidden = view !== "both" && view !== key;
    for (const button of document.querySelectorAll("[data-view]")) {
      button.setAttribute("aria-pressed", String(button.dataset.view === view));
    }
  }

  function turnPage(key, number) {
    at[key] = number;
    const graph = document.getElementById(key);
    for (const figure of graph.querySelectorAll("figure")) figure.hidden = Number(figure.dataset.number) !== number;
    const fed = graphs[key].nodes.findIndex((node) => node.page === number && node.op === "Placeholder");
    const figure = graph.querySelector("figure:not([hidden])");
    const first = figure.querySelector(`[data-node="${fed}"]`) || figure.querySelector(".box");
    if (first) center(first);
    const pages = graphs[key].pages;
    const steps = [];
    for (let page = number; page !== null; page = pages[page].parent) steps.unshift(page);
    const path = graph.querySelector(".path");
    path.replaceChildren(...steps.map((page) => link(pages[page].title || "whole graph", () => show(key, page))));
    path.hidden = Object.values(graphs).every((one) => one.pages.length === 1);
  }

  // Opens a page, and on the other side the one of the same scope.
  function show(key, number) {
    if (view !== "both" && view !== key) turn(key);
    turnPage(key, number);
    const title = graphs[key].pages[number].title;
    const twin = graphs[other(key)].pages.findIndex((page) => page.title === title);
    if (twin >= 0) turnPage(other(key), twin);
  }

  function row(list, label, ...values) {
    list.append(made("dt", label));
    for (const value of values) {
      const cell = document.createElement("dd");
      cell.append(value);
      list.append(cell);
    }
  }

  function describe(key, edge) {
    const graph = graphs[key];
    const number = find(graph, edge);
    if (number === undefined) return edge;
    const node = graph.nodes[number];
    return link(`${edge}  ${node.op}  ${node.shapes.join(", ")}`, () => choose(key, number, true));
  }

  // Marks the boxes of a node; the value is the one that can be seen.
  function mark(key, number) {
    const boxes = [...document.getElementById(key).querySelectorAll(`[data-node="${number}"]`)];
    for (const box of boxes) box.classList.add("chosen");
    return boxes.find((box) => box.getClientRects().length);
  }

  // The node whose box stands for a node: itself, or what reads a constant.
  function drawn(key, number) {
    const graph = graphs[key];
    return [number, ...graph.readers[number]].find((one) => graph.nodes[one].page !== null) ?? number;
  }

  // Scrolls the picture, not the document: what was clicked stays under the pointer.
  function center(box) {
    const figure = box.closest("figure");
    const [inner, outer] = [box.getBoundingClientRect(), figure.getBoundingClientRect()];
    figure.scrollTop += inner.top + inner.height / 2 - outer.top - outer.height / 2;
    figure.scrollLeft += inner.left + inner.width / 2 - outer.left - outer.width / 2;
  }

  function choose(key, number, go) {
    const graph = graphs[key];
    const node = graph.nodes[number];
    const twin = graphs[other(key)].numbers.get(node.name);
    const place = drawn(key, number);
    if (go && graph.nodes[place].page !== null) show(key, graph.nodes[place].page);
    for (const box of document.querySelectorAll(".chosen")) box.classList.remove("chosen");
    const neighbour = twin ?? graphs[other(key)].numbers.get(graph.nodes[place].name);
    if (neighbour !== undefined) {
      const beside = drawn(other(key), neighbour);
      const page = graphs[other(key)].nodes[beside].page;
      if (page !== null && page !== at[other(key)]) turnPage(other(key), page);
      const box = mark(other(key), beside);
      if (box) center(box);
    }
    const box = mark(key, place);
    if (go && box) box.scrollIntoView({ block: "center", inline: "center" });
    const list = document.createElement("dl");
    row(list, "name", node.name);
    row(list, "op", node.op);
    row(list, "shape", node.shapes.join(", "));
    row(list, `${key}`, node.difference ? `${node.fate}: here ${node.difference}` : node.fate);
    if (node.device) row(list, "device", node.device);
    if (node.inputs.length) row(list, "reads", ...node.inputs.map((edge) => describe(key, edge)));
    if (node.controls.length) row(list, "waits for", ...node.controls.map((name) => describe(key, name)));
    const readers = [...new Set(graph.readers[number])].slice(0, MOST_FOUND);
    if (readers.length) row(list, "read by", ...readers.map((reader) => describe(key, graph.nodes[reader].name)));
    for (const [name, text] of Object.entries(node.attributes)) row(list, name, text);
    details.replaceChildren(list);
    if (twin !== undefined) details.append(link(`show it ${other(key)}`, () => choose(other(key), twin, true)));
  }

  function pick(target) {
    const box = target.closest(".box");
    if (!box) return;
    const key = box.closest(".graph").id;
    if (box.dataset.page !== undefined) show(key, Number(box.dataset.page));
    else choose(key, Number(box.dataset.node), box.classList.contains("outside"));
  }

  document.addEventListener("click", (event) => pick(event.target));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter") pick(event.target);
  });
  for (const button of document.querySelectorAll("[data-view]")) {
    button.addEventListener("click", () => turn(button.dataset.view));
  }
  document.getElementById("search").addEventListener("input", (event) => {
    const word = event.target.value.trim().toLowerCase();
    const matches = [];
    for (const key of ["after", "before"]) {
      graphs[key].nodes.forEach((node, number) => {
        if (!word || matches.length >= MOST_FOUND || (key === "before" && node.fate !== "gone")) return;
        if (`${node.name} ${node.op}`.toLowerCase().includes(word)) matches.push([key, number, node]);
      });
    }
    found.replaceChildren(
      ...matches.map(([key, number, node]) =>
        link(node.fate === "gone" ? `${node.name} (gone)` : node.name, () => choose(key, number, true)),
      ),
    );
  });
  turn(window.innerWidth < 900 ? "after" : "both");
  show("before", 0);
  show("after", 0);
})();
