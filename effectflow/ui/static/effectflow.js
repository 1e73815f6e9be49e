// Keeps the page up to date. Everything works without it, by plain links and forms.

const main = document.getElementById("main");
const banner = document.getElementById("banner");

/** Make `old` like `fresh`, and touch only what differs, so that the focus and what is typed stay. */
export function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
    return;
  }
  if (old.isEqualNode(fresh)) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !isOfReader(old, name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value && !isOfReader(old, name)) old.setAttribute(name, value);
  }
  morphChildren(old, fresh);
}

/** What the reader has opened or changed is not ours to reset. */
function isOfReader(element, name) {
  return (name === "open" && element.nodeName === "DETAILS") || name === "data-kept";
}

/** The `id` of a form that has a field of this name would be the field. */
function idOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("id") : null;
}

function morphChildren(old, fresh) {
  const known = new Map();
  for (const child of old.children) if (idOf(child)) known.set(idOf(child), child);
  let place = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const id = idOf(wanted);
    const same = id ? known.get(id) : undefined;
    if (same) {
      if (same === place) place = place.nextSibling;
      else old.insertBefore(same, place);
      morph(same, wanted);
    } else if (place && !(idOf(place) && idOf(place) !== id) && place.nodeName === wanted.nodeName) {
      const next = place.nextSibling;
      morph(place, wanted);
      place = next;
    } else {
      old.insertBefore(wanted, place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

/** Show times in the reader's own time zone, and how long ago they were on hover. */
function localise(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    const text = at.toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" });
    if (time.textContent !== text) {
      time.title = time.dateTime;
      time.textContent = text;
    }
  }
}

function tell(text) {
  banner.textContent = text;
  banner.hidden = !text;
}

function follow() {
  const source = new EventSource(location.href);
  source.addEventListener("page", (event) => {
    const fresh = document.createElement("main");
    fresh.innerHTML = event.data;
    localise(fresh);
    morphChildren(main, fresh);
    tell("");
    document.dispatchEvent(new CustomEvent("renewed"));
  });
  source.addEventListener("problem", (event) => tell(event.data));
  source.onerror = () => tell("The server of these pages does not answer. This page shows what was last known.");
  addEventListener("pagehide", () => source.close());
}

/** A slider shows what it stands at, without a press of the button. */
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submits]")) event.target.form.requestSubmit();
});

/** One box checks all on the page, and the number of checked ones is shown. */
function countSelected() {
  const shown = document.querySelector("[data-selected]");
  const count = document.querySelectorAll('[name="id"]:checked').length;
  if (shown) shown.textContent = count ? `(${count})` : "";
}
document.addEventListener("change", ({ target }) => {
  const every = document.querySelector("[data-every]");
  if (target === every) {
    for (const box of document.querySelectorAll('[name="id"]')) box.checked = every.checked;
  } else if (target.name === "id" && !target.checked && every) {
    every.checked = false;
  }
  countSelected();
});
document.addEventListener("renewed", countSelected);

localise(document);
countSelected();
if (!main.querySelector("[data-still]")) follow();
