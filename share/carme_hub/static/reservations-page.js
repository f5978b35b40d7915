// The page of the form, looked at while it is typed; and the button that copies an address.
import { BookingForm } from "./reservations-form.js";

const form = document.getElementById("book-form");
if (form) {
  const booking = new BookingForm(form, document.getElementById("book-check"));
  booking.look(0);
  window.addEventListener("pageshow", (event) => { if (event.persisted) booking.look(0); });
}
for (const button of document.querySelectorAll("[data-copy]")) {
  const source = document.getElementById(button.dataset.copy);
  button.hidden = !navigator.clipboard;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(source.value);
    button.textContent = "Copied";
  });
  source.addEventListener("focus", () => source.select());
}
