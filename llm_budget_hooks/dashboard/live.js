"use strict";
// Loads the page again every five seconds and puts its parts in, but for those that somebody is at work in.
const EVERY_MS = 5000;
const PARTS = "[data-live]";

const busy = (part) => part.querySelector("details[open] form") !== null;
const spots = (part) => [...part.querySelectorAll("a, button, summary, [tabindex]")];

// The same place in a newer part: that of an entry which may have moved, or else the one at the same position.
function place(part, next) {
  const entry = document.activeElement.closest("details[id]");
  if (document.activeElement.matches("summary") && entry !== null) {
    return next.querySelector(`#${CSS.escape(entry.id)} > summary`);
  }
  return spots(next)[spots(part).indexOf(document.activeElement)];
}

function put(part, next) {
  const focused = part.contains(document.activeElement) ? place(part, next) : null;
  for (const opened of part.querySelectorAll("details[open][id]")) {
    next.querySelector(`#${CSS.escape(opened.id)}`)?.setAttribute("open", "");
  }
  part.replaceWith(next);
  focused?.focus({ preventScroll: true });
}

async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch(location.pathname + location.search, { headers: { accept: "text/html" } });
      const found = new DOMParser().parseFromString(await answer.text(), "text/html");
      const known = answer.ok && found.getElementById("live") !== null;
      document.body.classList.toggle("stale", !known);
      for (const part of known ? document.querySelectorAll(PARTS) : []) {
        const next = found.getElementById(part.id);
        if (next !== null && !busy(part)) put(part, next);
      }
    } catch {
      document.body.classList.add("stale");
    }
  }
  setTimeout(refresh, EVERY_MS);
}

setTimeout(refresh, EVERY_MS);
