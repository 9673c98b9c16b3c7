"use strict";
(() => {
  const graphs = JSON.parse(document.getElementById("data").textContent);
  const details = document.getElementById("details");
  const stage = document.querySelector(".stage");
  const results = document.getElementById("results");
  const MAX_RESULTS = 30;
  const currentPage = { before: 0, after: 0 };
  let view = "both";

  for (const key of Object.keys(graphs)) {
    const graph = graphs[key];
    graph.numbers = new Map(graph.nodes.map((node, number) => [node.name, number]));
    graph.consumers = graph.nodes.map(() => []);
    graph.nodes.forEach((node, number) => {
      for (const source of [...node.inputs, ...node.controls]) {
        const producer = find(graph, source);
        if (producer !== undefined) graph.consumers[producer].push(number);
      }
    });
  }

  function find(graph, edge) {
    const number = graph.numbers.get(edge);
    return number !== undefined ? number : graph.numbers.get(edge.replace(/:\d+$/, ""));
  }

  function createElement(tag, text) {
    const element = document.createElement(tag);
    element.textContent = text;
    return element;
  }

  function link(text, action) {
    const button = createElement("button", text);
    button.type = "button";
    button.addEventListener("click", action);
    return button;
  }

  function other(key) {
    return key === "before" ? "after" : "before";
  }

  function setView(name) {
    view = name;
    stage.classList.toggle("both", view === "both");
    for (const key of Object.keys(graphs)) document.getElementById(key).hidden = view !== "both" && view !== key;
    for (const button of document.querySelectorAll("button[data-view]")) {
      button.setAttribute("aria-pressed", String(button.dataset.view === view));
    }
  }

  function openPage(key, number) {
    currentPage[key] = number;
    const graph = document.getElementById(key);
    for (const figure of graph.querySelectorAll("figure")) figure.hidden = Number(figure.dataset.number) !== number;
    const input = graphs[key].nodes.findIndex((node) => node.page === number && node.op === "Placeholder");
    const figure = graph.querySelector("figure:not([hidden])");
    const first = figure.querySelector(`[data-node="${input}"]`) || figure.querySelector(".box");
    if (first) center(first);
    const pages = graphs[key].pages;
    const steps = [];
    for (let page = number; page !== null; page = pages[page].parent) steps.unshift(page);
    const path = graph.querySelector(".path");
    path.replaceChildren(...steps.map((page) => link(pages[page].title || "whole graph", () => show(key, page))));
    path.hidden = Object.values(graphs).every((graph) => graph.pages.length === 1);
  }

  // Opens a page, and the page of the same scope in the other graph.
  function show(key, number) {
    if (view !== "both" && view !== key) setView(key);
    openPage(key, number);
    const title = graphs[key].pages[number].title;
    const counterpart = graphs[other(key)].pages.findIndex((page) => page.title === title);
    if (counterpart >= 0) openPage(other(key), counterpart);
  }

  function row(list, label, ...values) {
    list.append(createElement("dt", label));
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

  // Marks the boxes of a node, and returns the visible one.
  function mark(key, number) {
    const boxes = [...document.getElementById(key).querySelectorAll(`[data-node="${number}"]`)];
    for (const box of boxes) box.classList.add("chosen");
    return boxes.find((box) => box.getClientRects().length);
  }

  // Returns the node whose box represents a node: the node itself, or the consumer of a constant.
  function drawnNode(key, number) {
    const graph = graphs[key];
    return [number, ...graph.consumers[number]].find((index) => graph.nodes[index].page !== null) ?? number;
  }

  // Scrolls the drawing, not the document: the clicked box stays under the pointer.
  function center(box) {
    const figure = box.closest("figure");
    const [inner, outer] = [box.getBoundingClientRect(), figure.getBoundingClientRect()];
    figure.scrollTop += inner.top + inner.height / 2 - outer.top - outer.height / 2;
    figure.scrollLeft += inner.left + inner.width / 2 - outer.left - outer.width / 2;
  }

  function choose(key, number, go) {
    const graph = graphs[key];
    const node = graph.nodes[number];
    const counterpart = graphs[other(key)].numbers.get(node.name);
    const drawn = drawnNode(key, number);
    if (go && graph.nodes[drawn].page !== null) show(key, graph.nodes[drawn].page);
    for (const box of document.querySelectorAll(".chosen")) box.classList.remove("chosen");
    const neighbour = counterpart ?? graphs[other(key)].numbers.get(graph.nodes[drawn].name);
    if (neighbour !== undefined) {
      const neighbourNode = drawnNode(other(key), neighbour);
      const page = graphs[other(key)].nodes[neighbourNode].page;
      if (page !== null && page !== currentPage[other(key)]) openPage(other(key), page);
      const box = mark(other(key), neighbourNode);
      if (box) center(box);
    }
    const box = mark(key, drawn);
    if (go && box) box.scrollIntoView({ block: "center", inline: "center" });
    const list = document.createElement("dl");
    row(list, "name", node.name);
    row(list, "op", node.op);
    row(list, "shape", node.shapes.join(", "));
    row(list, `${key}`, node.difference ? `${node.fate}: here ${node.difference}` : node.fate);
    if (node.device) row(list, "device", node.device);
    if (node.inputs.length) row(list, "inputs", ...node.inputs.map((edge) => describe(key, edge)));
    if (node.controls.length) row(list, "control dependencies", ...node.controls.map((name) => describe(key, name)));
    const consumers = [...new Set(graph.consumers[number])].slice(0, MAX_RESULTS);
    if (consumers.length) row(list, "consumers", ...consumers.map((consumer) => describe(key, graph.nodes[consumer].name)));
    for (const [name, text] of Object.entries(node.attributes)) row(list, name, text);
    details.replaceChildren(list);
    if (counterpart !== undefined) details.append(link(`show it ${other(key)}`, () => choose(other(key), counterpart, true)));
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
  for (const button of document.querySelectorAll("button[data-view]")) {
    button.addEventListener("click", () => setView(button.dataset.view));
  }
  document.getElementById("search").addEventListener("input", (event) => {
    const query = event.target.value.trim().toLowerCase();
    const matches = [];
    for (const key of ["after", "before"]) {
      graphs[key].nodes.forEach((node, number) => {
        if (!query || matches.length >= MAX_RESULTS || (key === "before" && node.fate !== "gone")) return;
        if (`${node.name} ${node.op}`.toLowerCase().includes(query)) matches.push([key, number, node]);
      });
    }
    results.replaceChildren(
      ...matches.map(([key, number, node]) =>
        link(node.fate === "gone" ? `${node.name} (gone)` : node.name, () => choose(key, number, true)),
      ),
    );
  });
  setView(stage.dataset.view || (window.innerWidth < 900 ? "after" : "both"));
  if (stage.dataset.view) for (const button of document.querySelectorAll("button[data-view]")) button.hidden = true;
  show("before", 0);
  show("after", 0);
})();
