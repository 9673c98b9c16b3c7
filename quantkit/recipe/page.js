"use strict";
(() => {
  const graphs = JSON.parse(document.getElementById("data").textContent);
  const details = document.getElementById("details");
  const path = document.getElementById("path");
  const found = document.getElementById("found");
  const MOST_FOUND = 30;
  let current = "after";
  const at = { before: 0, after: 0 };

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

  function show(key, number) {
    current = key;
    at[key] = number;
    for (const other of Object.keys(graphs)) {
      document.getElementById(other).hidden = other !== key;
      document.querySelector(`[data-graph="${other}"]`).setAttribute("aria-pressed", String(other === key));
    }
    for (const figure of document.getElementById(key).querySelectorAll("figure")) {
      figure.hidden = Number(figure.dataset.number) !== number;
    }
    const pages = graphs[key].pages;
    const steps = [];
    for (let page = number; page !== null; page = pages[page].parent) steps.unshift(page);
    path.replaceChildren(...steps.map((page) => link(pages[page].title || "whole graph", () => show(key, page))));
    path.hidden = pages.length === 1;
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

  function choose(key, number, go) {
    const graph = graphs[key];
    const node = graph.nodes[number];
    if (go && node.page !== null) show(key, node.page);
    for (const box of document.querySelectorAll(".chosen")) box.classList.remove("chosen");
    for (const box of document.getElementById(key).querySelectorAll(`[data-node="${number}"]`)) {
      box.classList.add("chosen");
      if (go && !box.closest("figure").hidden) box.scrollIntoView({ block: "center", inline: "center" });
    }
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
    const other = key === "before" ? "after" : "before";
    const twin = graphs[other].numbers.get(node.name);
    details.replaceChildren(list);
    if (twin !== undefined) details.append(link(`show it ${other}`, () => choose(other, twin, true)));
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
  for (const button of document.querySelectorAll("[data-graph]")) {
    button.addEventListener("click", () => show(button.dataset.graph, at[button.dataset.graph]));
  }
  document.getElementById("search").addEventListener("input", (event) => {
    const word = event.target.value.trim().toLowerCase();
    const matches = [];
    graphs[current].nodes.forEach((node, number) => {
      if (word && matches.length < MOST_FOUND && `${node.name} ${node.op}`.toLowerCase().includes(word)) {
        matches.push(number);
      }
    });
    const key = current;
    found.replaceChildren(
      ...matches.map((number) => link(graphs[key].nodes[number].name, () => choose(key, number, true))),
    );
  });
  show("before", 0);
  show("after", 0);
})();
