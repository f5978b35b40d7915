// Draws the diagrams of a page, which are blocks of text in the language "mermaid".
"use strict";

addEventListener("DOMContentLoaded", () => {
  const nodes = document.querySelectorAll(".highlight-mermaid pre");
  const dark = document.documentElement.dataset.theme === "dark";
  for (const node of nodes) node.textContent = node.textContent; // without the marks of the highlighter
  mermaid.initialize({ startOnLoad: false, theme: dark ? "dark" : "default" });
  mermaid.run({ nodes });
});
