// Times in the reader's zone, buttons that copy a command, and pages that show what changes. Every page works without this.

const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const short = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

function dress(part) {
  for (const time of part.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    time.title = whole.format(at);
    if (time.textContent.endsWith("UTC")) time.textContent = short.format(at);
  }
  if (!navigator.clipboard) return;
  for (const button of part.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", () => copy(button));
  }
}

async function copy(button) {
  const words = button.firstChild;
  button.classList.add("copied");
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    words.data = "Copied";
  } catch { words.data = "Not copied"; }
  setTimeout(() => { words.data = "Copy"; button.classList.remove("copied"); }, 1500);
}

dress(document);
// A page that changes says of what: <main data-live="conversations:ID windows" data-at="when it was made">.
const main = document.querySelector("main[data-live]");
const [pause, wait] = [2000, 15000]; // milliseconds between two loads, and between those of a page without a stream

// Whether somebody is at work in the page, whom new contents would disturb.
function isInUse() {
  const chosen = getSelection();
  if (!chosen.isCollapsed && main.contains(chosen.anchorNode) || main.querySelector(".copied")) return true;
  return [...main.querySelectorAll("input, select, textarea")].some((field) =>
    field === document.activeElement ||
    (field.options ? [...field.options].some((each) => each.selected !== each.defaultSelected)
      : field.value !== field.defaultValue || field.checked !== field.defaultChecked));
}

// What stays the same element for a reader, by its name and how many of that name are before it.
function named(part, selector) {
  const found = new Map();
  for (const each of part.querySelectorAll(selector)) {
    const name = each.id || (each.getAttribute("href") ?? (each.querySelector("summary") ?? each).textContent.trim());
    let number = 0;
    while (found.has(`${each.tagName} ${name} ${number}`)) number++;
    found.set(`${each.tagName} ${name} ${number}`, each);
  }
  return found;
}

function words(part) {
  const copied = part.cloneNode(true);
  for (const time of copied.querySelectorAll("time")) time.remove();
  return copied.textContent;
}

function swap(fresh) {
  const focusable = "a, button, summary, pre, [tabindex]";
  const [focus] = [...named(main, focusable)].find(([, each]) => each === document.activeElement) ?? [];
  const open = [...named(main, "details")].map(([key, each]) => [key, each.open]);
  const [x, y, isNew] = [scrollX, scrollY, words(fresh) !== words(main)];
  dress(fresh);
  main.replaceChildren(...fresh.childNodes);
  main.dataset.at = fresh.dataset.at;
  const details = named(main, "details");
  for (const [key, isOpen] of open) if (details.has(key)) details.get(key).open = isOpen;
  named(main, focusable).get(focus)?.focus({ preventScroll: true });
  scrollTo({ left: x, top: y, behavior: "instant" });
  return isNew;
}

if (main) {
  const note = document.createElement("p");
  note.className = "visually-hidden";
  note.setAttribute("role", "status");
  document.body.append(note);
  let [source, release, timer, due, last, round] = [null, null, 0, 0, 0, 0];

  const load = async () => {
    last = Date.now();
    if (isInUse()) return schedule();
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "manual" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.querySelector("main[data-live]");
      // Who is signed out, or looks at what is gone, keeps what was there.
      if (!answer.ok || !fresh) return;
      if (isInUse()) return schedule();
      if (swap(fresh)) note.textContent = "Updated";
    } catch { /* The gateway is away: the next time will tell. */ }
    setTimeout(() => { note.textContent = ""; }, pause);
  };

  const schedule = () => {
    due ||= setTimeout(() => { due = 0; load(); }, Math.max(0, last + pause - Date.now()));
  };

  const concerns = ({ kind, ids }) => main.dataset.live.split(" ").some((each) => {
    const [ofKind, id] = each.split(":");
    return ofKind === kind && (!id || !ids || ids.includes(id));
  });

  // Two pages of a browser have a stream: it has few connections to one gateway. Resolves to what gives the place back.
  const place = (name) => new Promise((done) => {
    if (!navigator.locks) return done(null);
    navigator.locks.request(name, { ifAvailable: true }, (lock) =>
      lock ? new Promise((free) => done(free)) : done(null));
  });

  const listen = async () => {
    const mine = ++round;
    const free = await place("live-1") ?? await place("live-2");
    if (!free || mine !== round) return free?.();
    release = free;
    source = new EventSource(`/console/events?since=${encodeURIComponent(main.dataset.at)}`);
    source.addEventListener("change", (event) => { if (concerns(JSON.parse(event.data))) schedule(); });
    // It comes back by itself, unless it was refused.
    source.addEventListener("error", () => { if (source?.readyState === EventSource.CLOSED) stop(); });
  };

  const stop = () => {
    round++;
    source?.close();
    release?.();
    [source, release] = [null, null];
  };

  const begin = () => {
    listen();
    timer = setInterval(() => {
      if (source?.readyState !== EventSource.OPEN) schedule();
      if (!source) listen();
    }, wait);
  };

  document.addEventListener("visibilitychange", () => {
    clearInterval(timer);
    due = clearTimeout(due);
    stop();
    if (!document.hidden) { schedule(); begin(); }
  });
  if (!document.hidden) begin();
}
