"use strict";
// Loads the page again every five seconds and puts its numbers in, unless somebody is at work in it.
const EVERY_MS = 5000;

const busy = (live) =>
  document.hidden || live.contains(document.activeElement) || live.querySelector("details[open]") !== null;

async function refresh() {
  const live = document.getElementById("live");
  if (!busy(live)) {
    try {
      const answer = await fetch(location.pathname + location.search, { headers: { accept: "text/html" } });
      const found = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
      document.body.classList.toggle("stale", !answer.ok || found === null);
      if (answer.ok && found !== null && !busy(live)) live.replaceWith(found);
    } catch {
      document.body.classList.add("stale");
    }
  }
  setTimeout(refresh, EVERY_MS);
}

setTimeout(refresh, EVERY_MS);
