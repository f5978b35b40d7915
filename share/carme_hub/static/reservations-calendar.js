// The calendar: EventCalendar on what REST says, and dragging that asks REST while it goes on.
// EventCalendar is told the wall clock of the reader's zone; what comes back from it goes to REST as such, with the zone.
import { bands, content, event, rows, shown } from "./reservations-events.js";
import { BookingForm, Looker, offerButtons, offers, verdict } from "./reservations-form.js";
import { ask, Keys, settings } from "./reservations-rest.js";
import { epoch, need, offset, shortSpan, span, wall } from "./reservations-time.js";
import { zone } from "./reservations-zone.js";

const place = document.getElementById("calendar");
const trouble = document.getElementById("trouble");
const hint = document.getElementById("hint");
const phone = window.matchMedia("(max-width: 767.98px)");
const looker = new Looker();
const REFRESH = 60_000;
let calendar;

// -- what is shown ----------------------------------------------------------------------------------------------------

function complain(words) {
  trouble.textContent = words;
  trouble.hidden = !words;
}

async function load({ startStr, endStr }) {
  const [from, to] = [startStr, endStr].map((each) => epoch(`${each.slice(0, 10)}T00:00:00`, zone));
  const now = Math.floor(Date.now() / 1000);
  try {
    const asked = [ask("GET", `bookings?from=${from}&to=${to}`)];
    asked.push(ask("GET", `bookings?from=${from}&to=${to}&mine=true`));
    asked.push(to > now ? ask("GET", `free?from=${Math.max(from, now)}&to=${to}`).catch(() => null) : { types: [] });
    const [all, mine, free] = await Promise.all(asked);
    // What is booked is known without Slurm. The page says by itself where Slurm did not answer when it was made.
    complain(free || settings.unknown ? "" : "How many GPUs are free is not known just now. It is asked again by itself.");
    const there = new Set(all.bookings.map((each) => each.id));
    const more = mine.bookings.filter((each) => !there.has(each.id) && each.state !== "cancelled" && each.end > from && each.start < to);
    const found = [...all.bookings, ...more].map((one, number) => event(one, zone, number));
    return [...found, ...bands(free?.types ?? [], zone, wish().gpu_type)];
  } catch (refusal) {
    complain(`${refusal.message} What is shown may be old.`);
    return calendar ? calendar.getEvents() : [];
  }
}

/** Put sentences into a list. What is there already stays untouched: screen readers say each node that is new. */
function tell(list, sentences) {
  const there = new Map([...list.children].map((each) => [each.textContent.trim(), each]));
  for (const [sentence, item] of there) if (!sentences.includes(sentence)) item.remove();
  sentences.forEach((sentence, at) => {
    if (list.children[at]?.textContent.trim() === sentence) return;
    const item = there.get(sentence) ?? Object.assign(document.createElement("li"), { textContent: sentence });
    list.insertBefore(item, list.children[at] ?? null);
  });
  while (list.children.length > sentences.length) list.lastElementChild.remove();
}

async function words() {
  try {
    const said = await ask("GET", `words?zone=${encodeURIComponent(zone)}`);
    if (said.sentences.length) tell(document.getElementById("words"), said.sentences);
  } catch { /* the calendar says that the service does not answer */ }
}

// -- what is asked while something is dragged -------------------------------------------------------------------------

const times = (info) => ({ start: info.startStr ?? iso(info.event.start), end: info.endStr ?? iso(info.event.end) });
const pad = (number) => String(number).padStart(2, "0");
const iso = (at) => `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}T${pad(at.getHours())}:${pad(at.getMinutes())}:00`;
const period = ({ start, end }) => ({ start: epoch(start, zone), end: epoch(end, zone) });

function wish() {
  return {
    gpu_type: document.getElementById("wish-type").value,
    gpus: Number(document.getElementById("wish-gpus")?.value ?? 1),
    seats: Math.max(1, Number(document.getElementById("wish-seats")?.value) || 1),
  };
}

function say(words, state = "") {
  hint.textContent = words;
  hint.dataset.state = state;
  hint.hidden = !words;
  document.body.dataset.drag = state;
}

/** Say, while a hand drags, whether it could be had there. */
function consider(body, when) {
  const words = `${shortSpan(when, zone)}, ${need(body)}`;
  say(`${words}: looking…`);
  looker.look(body, (found) => {
    if (found.granted) say(`✓ ${words}: free${found.needs_approval ? ", needs approval" : ""}`, "free");
    else if (found.refusal) say(`✕ ${words}: ${found.refusal}`, "taken");
    else {
      const [conflict] = found.conflicts;
      const rest = conflict?.seats ? ` ${conflict.seats} seat${conflict.seats === 1 ? "" : "s"} would be.` : "";
      say(`✕ ${words}: not free.${rest}`, "taken");
    }
  }, (refusal) => say(`✕ ${refusal.message}`, "taken"));
}

/** A booking as it is asked for at another time. */
const elsewhere = (one, when) => ({
  title: one.title, gpu_type: one.gpu_type, gpus: one.gpus, seats: one.seats, start: when.start, end: when.end,
  zone: one.zone || zone, account: one.account, ...(one.mine ? {} : { owner: one.owner }),
  users: one.users, group: one.group, everybody: one.everybody, profile: one.profile, instead_of: one.id,
});

// -- booking ----------------------------------------------------------------------------------------------------------

const bookDialog = document.getElementById("book-dialog");
const form = document.getElementById("book-form");
const booking = new BookingForm(form, document.getElementById("book-check"));
const wait = form.querySelector("[data-wait]");
const keys = new Keys();

booking.onlooked = (found) => { wait.hidden = !(found && found.conflicts.length && found.times.length === 1 && !found.refusal); };

function offerBooking(when, type) {
  say("");
  const asked = wish();
  form.reset();
  for (const each of form.querySelectorAll('[name="without"]')) each.remove();
  form.elements.zone.value = zone;
  form.elements.gpu_type.value = type ?? asked.gpu_type;
  form.elements.seats.value = asked.seats;
  form.elements.gpus.value = asked.gpus;
  booking.at(when);
  bookDialog.showModal();
  form.elements.title.focus();
  booking.look(0);
}

async function book(waits) {
  if (!form.reportValidity()) return;
  const body = booking.body();
  if (!body) {
    booking.look(0);
    booking.place.scrollIntoView({ block: "nearest" });
    return;
  }
  const button = waits ? wait : form.querySelector('[type="submit"]');
  button.disabled = true;
  try {
    const asked = { ...body, wait: waits };
    const done = await ask("POST", "bookings", asked, { "Idempotency-Key": keys.of(asked) });
    keys.done();
    bookDialog.close();
    const [one] = done.bookings;
    const state = one.waits ? "is on the waitlist" : one.state === "pending" ? "waits for approval" : "is booked";
    say(`✓ “${one.title}” ${state}${done.bookings.length > 1 ? ` at ${done.bookings.length} times` : ""}.`, "done");
    setTimeout(() => say(""), 6000);
    refresh();
  } catch (refusal) {
    booking.fail(refusal);
  } finally {
    button.disabled = false;
  }
}

form.addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  book(false);
});
wait.addEventListener("click", () => book(true));

// -- moving -----------------------------------------------------------------------------------------------------------

const moveDialog = document.getElementById("move-dialog");
const moveForm = document.getElementById("move-form");
const moveCheck = document.getElementById("move-check");
const moves = new Keys();
const moving = { one: null, when: null, revert: () => {} };

function offerMove(info) {
  say("");
  const { one } = info.event.extendedProps;
  Object.assign(moving, { one, when: period(times(info)), revert: info.revert });
  document.getElementById("move-title").textContent = `Move “${one.title}”?`;
  document.getElementById("move-series").hidden = !one.series;
  moveForm.reset();
  moveDialog.returnValue = "";
  moveDialog.showModal();
  lookAtMove();
}

function lookAtMove() {
  const { one, when } = moving;
  document.getElementById("move-words").textContent = `From ${span(one, zone)} to ${span(when, zone)}.`;
  moveCheck.replaceChildren();
  const submit = moveForm.querySelector('[type="submit"]');
  submit.disabled = true;
  looker.look(elsewhere(one, when), (found) => {
    submit.disabled = !found.granted;
    if (found.granted) moveCheck.replaceChildren(verdict(true, `${need(one)}: free then.${found.needs_approval ? " An administrator has to approve it again." : ""}`));
    else showMoveRefusal(found.refusal || `${need(one)}: not free then.`, found.conflicts);
  }, (refusal) => showMoveRefusal(refusal.message, refusal.answer?.conflicts ?? []), 0);
}

function showMoveRefusal(words, conflicts) {
  const found = offers(conflicts, zone).filter(([, what]) => what.time);
  const buttons = offerButtons(found, ({ time }) => {
    moving.when = time;
    lookAtMove();
  });
  moveCheck.replaceChildren(verdict(false, words), buttons);
}

moveForm.addEventListener("submit", async (submitted) => {
  submitted.preventDefault();
  const { one, when } = moving;
  const submit = moveForm.querySelector('[type="submit"]');
  submit.disabled = true;
  try {
    const series = one.series ? moveForm.elements.series.value : "one";
    const asked = { version: one.version, start: when.start, end: when.end, series };
    await ask("PATCH", `bookings/${one.id}`, asked, { "Idempotency-Key": moves.of({ id: one.id, ...asked }) });
    moveDialog.close("moved");
    say(`✓ “${one.title}” is moved to ${span(when, zone)}.`, "done");
    setTimeout(() => say(""), 6000);
    refresh();
  } catch (refusal) {
    showMoveRefusal(refusal.message, refusal.answer?.conflicts ?? []);
  }
});
moveDialog.addEventListener("close", () => {
  looker.stop();
  if (moveDialog.returnValue !== "moved") moving.revert();
});
bookDialog.addEventListener("close", () => {
  booking.looker.stop();
  calendar.unselect();
});
for (const dialog of [bookDialog, moveDialog]) {
  dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
}

// -- the calendar itself ----------------------------------------------------------------------------------------------

const mayBook = settings.mayBook === "yes";
const future = (when) => when.end > Date.now() / 1000;

function dragged(info) {
  const { one } = info.event.extendedProps;
  if (info.newResource && info.newResource.id !== info.oldResource?.id) return false;  // its place is found by the service
  const when = period(times(info));
  if (!future(when)) return false;
  consider(elsewhere(one, when), when);
  return true;
}

function refresh() {
  calendar.refetchEvents();
  words();
}

function toolbar() {
  return phone.matches
    ? { start: "prev,next today", center: "title", end: "listWeek,timeGridDay" }
    : { start: "prev,next today", center: "title", end: "dayGridMonth,timeGridWeek,timeGridDay resourceTimelineDay,resourceTimelineWeek" };
}

async function begin() {
  let supply = { types: [], nodes: [] };
  try {
    supply = await ask("GET", "supply");
  } catch (refusal) {
    complain(refusal.message);
  }
  const kept = JSON.parse(sessionStorage.getItem("carme-calendar") ?? "{}");
  const usual = phone.matches ? "listWeek" : "timeGridWeek";
  const there = new Date(`${wall(Date.now() / 1000, zone)}Z`);
  const [today, hour] = [there.getUTCDay(), there.getUTCHours()];  // a week begins with the day that it is
  const tall = supply.nodes.length > 14 ? "min(46rem, 82vh)" : "auto";
  const clock = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  calendar = EventCalendar.create(place, {
    view: !phone.matches && kept.view ? kept.view : usual,
    date: kept.date ?? wall(Date.now() / 1000, zone).slice(0, 10),
    timeZone: offset(zone),
    locale: "en-GB",
    firstDay: 1,
    headerToolbar: toolbar(),
    buttonText: (text) => ({ ...text, today: "Today", dayGridMonth: "Month", timeGridWeek: "Week", timeGridDay: "Day", listWeek: "List", resourceTimelineDay: "Nodes, day", resourceTimelineWeek: "Nodes, week" }),
    eventTimeFormat: clock,
    slotLabelFormat: clock,
    dayHeaderFormat: { weekday: "short", day: "numeric", month: "short" },
    nowIndicator: true,
    scrollTime: `${pad(Math.max(0, Math.min(7, hour - 1)))}:00`,
    slotDuration: "00:30",
    slotHeight: 26,
    slotEventOverlap: false,
    allDaySlot: false,
    height: "min(46rem, 82vh)",
    longPressDelay: 500,
    noEventsContent: "Nothing is booked in these days.",
    resources: rows(supply),
    eventSources: [{ events: load }],
    eventContent: content,
    eventFilter: shown,
    eventResizableFromStart: true,
    editable: mayBook,
    selectable: mayBook && supply.types.length > 0,
    unselectAuto: false,
    selectConstraint: (info) => {
      const when = period({ start: info.startStr, end: info.endStr });
      if (!future(when)) return false;
      const asked = { ...wish(), ...(info.resource ? { gpu_type: info.resource.extendedProps.type } : {}) };
      consider({ title: "-", ...asked, start: info.startStr.slice(0, 16), end: info.endStr.slice(0, 16), zone }, when);
      return true;
    },
    select: (info) => offerBooking(period({ start: info.startStr, end: info.endStr }), info.resource?.extendedProps.type),
    dragConstraint: dragged,
    resizeConstraint: dragged,
    eventDrop: offerMove,
    eventResize: offerMove,
    eventDragStop: () => say(""),
    eventResizeStop: () => say(""),
    eventClick: ({ event: clicked }) => {
      const { one } = clicked.extendedProps;
      if (one?.id) location.assign(`${settings.prefix}bookings/${one.id}`);
    },
    eventDidMount: ({ el: made, event: shownEvent }) => {
      const said = shownEvent.extendedProps.words;
      made.title = said ?? shownEvent.title;
      if (said) made.setAttribute("aria-label", said);
    },
    dateClick: ({ dateStr, view }) => {
      if (view.type === "dayGridMonth") calendar.setOption("view", "timeGridDay").setOption("date", dateStr.slice(0, 10));
    },
    datesSet: ({ startStr, endStr, view }) => {
      // Who comes back from a booking finds the days that they left, unless these are the days that are shown anyway.
      const [start, end, now] = [epoch(startStr, zone), epoch(endStr, zone), Date.now() / 1000];
      const days = view.type === "dayGridMonth" ? 8 : 0;  // a month's first row begins in the month before
      const date = start <= now && now < end ? undefined : wall(start + days * 86400 + 3600, zone).slice(0, 10);
      sessionStorage.setItem("carme-calendar", JSON.stringify({ view: view.type, date }));
    },
    views: {
      timeGridWeek: { firstDay: today },
      resourceTimelineWeek: { firstDay: today, slotDuration: "12:00", snapDuration: "01:00", slotWidth: 78, slotLabelInterval: "12:00", height: tall },
      dayGridMonth: { dayHeaderFormat: { weekday: "short" }, selectable: false, editable: false, dayMaxEvents: true },
      listWeek: { firstDay: today, selectable: false, editable: false, height: "auto" },
      resourceTimelineDay: { slotDuration: "01:00", snapDuration: "00:15", slotWidth: 56, height: tall },
    },
  });
  let narrow = phone.matches;
  let settling = 0;
  phone.addEventListener("change", () => {
    clearTimeout(settling);
    settling = setTimeout(() => {
      if (narrow === phone.matches) return;
      narrow = phone.matches;
      calendar.setOption("headerToolbar", toolbar()).setOption("view", narrow ? "listWeek" : "timeGridWeek");
    }, 300);
  });
  setInterval(() => { if (!document.hidden && !bookDialog.open && !moveDialog.open) refresh(); }, REFRESH);
  document.addEventListener("pointerup", () => setTimeout(() => { if (!hint.textContent.startsWith("✓ “")) say(""); }, 50));
}

document.getElementById("wish-type").addEventListener("change", () => calendar.refetchEvents());
document.getElementById("wish")?.removeAttribute("hidden");  // without this script there is nothing to choose for
begin();
