/* Messages of administrators and announcements in JupyterLab; activity.js shows them as its other notifications: once in
   all tabs. The hub sends no message again that was seen; a browser remembers which announcements it has shown. */

/** Characters of a notification: JupyterLab cuts what is longer than 140. */
const MOST = 135;

/** Return the text of a notification, cut where it is too long. */
export function shortText(heading, text) {
  const line = `${heading}: ${text.split("\n").join(" ")}`;
  return line.length <= MOST ? line : `${line.slice(0, MOST - 1)}…`;
}

/** Return what is to be shown of messages and announcements, in the form of activity.js' warnings. */
export function messageWarnings(view) {
  const found = [];
  const add = (id, heading, text, actions, message) => {
    const short = shortText(heading, text);
    const more = short.endsWith("…") && !text.endsWith("…") ? ["read"] : [];
    found.push({ id, text: short, heading, whole: text, message, actions: [...more, ...actions] });
  };
  for (const one of view?.state?.announcements ?? []) add(`announcement-${one.id}`, one.heading, one.text, []);
  for (const one of view?.state?.messages ?? []) add(`message-${one.id}`, `Message from ${one.from}`, one.text, ["seen"], one.id);
  return found;
}

/** Show a whole text in a dialog of JupyterLab, which shows a text as text. */
export function readMessage(showDialog, Dialog, title, body) {
  return showDialog({ title, body, buttons: [Dialog.okButton()] });
}
