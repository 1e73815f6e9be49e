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

/** What the reader has opened or closed is not ours to change. */
function isOfReader(element, name) {
  return name === "open" && element.nodeName === "DETAILS";
}

/** The `id` of a form that has a field of this name would be the field. */
function idOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("id") : null;
}

function morphChildren(old, fresh) {
  const known = new Map();
  for (const child of old.children) if (idOf(child)) known.set(idOf(child), child);
  const kept = new Set([...fresh.children].map(idOf));
  let place = old.firstChild;
  const drop = () => {
    const next = place.nextSibling;
    place.remove();
    place = next;
  };
  for (const wanted of [...fresh.childNodes]) {
    const same = idOf(wanted) ? known.get(idOf(wanted)) : undefined;
    // A moved element would lose the focus, so what stands before it goes, if it can.
    const isGone = () =>
      (idOf(place) && !kept.has(idOf(place))) ||
      (same && same !== place && !idOf(place)) ||
      (place.nodeType === Node.TEXT_NODE && wanted.nodeType === Node.ELEMENT_NODE);
    while (place && isGone()) drop();
    if (same) {
      if (same === place) place = place.nextSibling;
      else old.insertBefore(same, place);
      morph(same, wanted);
    } else if (place && !(idOf(place) && idOf(place) !== idOf(wanted)) && place.nodeName === wanted.nodeName) {
      const next = place.nextSibling;
      morph(place, wanted);
      place = next;
    } else {
      old.insertBefore(wanted, place);
    }
  }
  while (place) drop();
}

/** Show times in the reader's own time zone, and how long ago some of them were. */
function localise(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    // As 2026-12-24 18:00:00, which no reader takes for another day.
    const text = at.toLocaleString("sv-SE") + ("age" in time.dataset ? ageOf(at) : "");
    if (time.textContent !== text) {
      time.title = time.dateTime;
      time.textContent = text;
    }
  }
}

/** As " (3 min ago)" and " (in 2 d)"; "" for less than a minute. */
function ageOf(at) {
  const past = (Date.now() - at) / 60000;
  const [size, unit] = [[1440, "d"], [60, "h"], [1, "min"]].find(([least]) => Math.abs(past) >= least) ?? [];
  if (!unit) return "";
  const count = `${Math.floor(Math.abs(past) / size)} ${unit}`;
  return past > 0 ? ` (${count} ago)` : ` (in ${count})`;
}
setInterval(() => localise(document), 10000);

function tell(text) {
  banner.textContent = text;
  banner.hidden = !text;
}

let source;

/** Follow the page while it can be seen: a browser has only six connections to a server, for all tabs. */
function follow() {
  source?.close();
  if (document.hidden || main.querySelector("[data-still]")) return;
  source = new EventSource(location.href);
  source.addEventListener("page", (event) => {
    const fresh = document.createElement("main");
    fresh.innerHTML = event.data;
    show(fresh);
    tell("");
  });
  // A page that is about the problem says it already.
  source.addEventListener("problem", (event) => main.querySelector("[data-says]") || tell(event.data));
  const own = source;
  source.onerror = async () => {
    // After an answer that is no stream, such as that of a proxy, the browser does not try again.
    const isClosed = own.readyState === EventSource.CLOSED;
    const problem = isClosed && (await isRefused()) ? REFUSED : AWAY;
    if (own !== source) return;
    tell(`${problem} This page shows what was last known.`);
    if (isClosed) setTimeout(() => own === source && follow(), 3000);
  };
}
const AWAY = "The server of these pages does not answer.";
const REFUSED = "The server asks for its token or a login again: reload this page.";

/** Return whether the server wants to know who reads, which the browser does not tell of a stream. */
async function isRefused() {
  try {
    const answer = await fetch(location.href, { method: "HEAD", redirect: "manual" });
    // A login leads elsewhere.
    return answer.type === "opaqueredirect" || [401, 403].includes(answer.status);
  } catch {
    return false;
  }
}
addEventListener("pagehide", () => source?.close());
addEventListener("pageshow", (event) => event.persisted && follow());
document.addEventListener("visibilitychange", follow);

function show(fresh) {
  localise(fresh);
  morphChildren(main, fresh);
  document.dispatchEvent(new CustomEvent("renewed"));
}

/** The URL of what is shown, without the place in it that a link such as `#main` leads to. */
const viewed = () => location.href.split("#")[0];
let view = viewed();
let wanted = "";

/** Go to another view of this page, and keep the focus and the scroll position. */
async function visit(href) {
  wanted = href;
  let fresh;
  try {
    const answer = await fetch(href);
    // A login leads elsewhere.
    const text = answer.ok && !answer.redirected ? await answer.text() : "";
    fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
  } catch {
    // The browser says why.
  }
  // The reader may have gone further meanwhile.
  if (wanted !== href) return;
  wanted = "";
  if (!fresh) return location.assign(href);
  history.pushState(null, "", href);
  view = viewed();
  show(fresh);
  follow();
}
addEventListener("popstate", () => viewed() === view || location.reload());

/** The time of a run: keys follow the links of its tools, and dragging chooses a part. */
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !event.target.closest(".timed")) return;
  if (event.target.matches("input, select, textarea")) return;
  const link = main.querySelector(`a[data-key="${CSS.escape(event.key)}"]`);
  if (link) {
    event.preventDefault();
    // A key that is held, or is pressed again before its answer has come, asks once.
    if (link.href !== wanted) visit(link.href);
  }
});

document.addEventListener("pointerdown", (event) => {
  const box = event.target.closest(".timed .scrolls");
  const scale = box?.querySelector("th.time");
  if (!event.target.closest(".time") || event.button) return;
  const { left, width } = scale.getBoundingClientRect();
  const share = (x) => Math.min(Math.max((x - left) / width, 0), 1);
  const mark = document.createElement("div");
  mark.className = "selection";
  const ends = () => [share(event.clientX), share(x)].sort((one, other) => one - other);
  const listening = new AbortController();
  let x = event.clientX;
  const drag = (moved) => {
    x = moved.clientX;
    if (!mark.isConnected && Math.abs(x - event.clientX) > 4) box.append(mark);
    const [from, to] = ends();
    const start = left - box.getBoundingClientRect().left + box.scrollLeft;
    mark.style.left = `${start + from * width}px`;
    mark.style.width = `${(to - from) * width}px`;
  };
  const drop = ({ type }) => {
    listening.abort();
    if (!mark.isConnected) return;
    mark.remove();
    // A finger that moves up or down scrolls instead.
    if (type === "pointercancel") return;
    // The click that this may be, and no later one.
    const ignore = (click) => click.preventDefault();
    addEventListener("click", ignore, { capture: true });
    setTimeout(() => removeEventListener("click", ignore, { capture: true }));
    const { from: began, to: ended } = scale.dataset;
    const at = (part) => (+began + part * (ended - began)).toFixed(6);
    const url = new URL(location.href);
    const [from, to] = ends();
    url.searchParams.set("from", at(from));
    url.searchParams.set("to", at(to));
    url.searchParams.delete("first");
    visit(url.href);
  };
  addEventListener("pointermove", drag, listening);
  addEventListener("pointerup", drop, listening);
  addEventListener("pointercancel", drop, listening);
});

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

// The answer to a form has an address of its own: who reloads it, or comes back to it, sends nothing again.
history.replaceState(history.state, "", location.href);

localise(document);
countSelected();
follow();
