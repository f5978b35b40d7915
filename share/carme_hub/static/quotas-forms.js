// Opens a form that was refused when the user goes back to it, so that the text that the browser has kept is visible.
(() => {
  const typed = (field) =>
    field.type === "hidden" ? false
    : field.type === "radio" || field.type === "checkbox" ? field.checked !== field.defaultChecked
    : field.tagName === "SELECT" ? [...field.options].some((each) => each.selected !== each.defaultSelected && each.index)
    : field.value !== field.defaultValue;
  window.addEventListener("pageshow", () => {
    for (const form of document.querySelectorAll("details:not([open]) form")) {
      if ([...form.elements].some((field) => "form" in field && field.name && typed(field))) form.closest("details").open = true;
    }
  });
})();
