// Puts what has changed in place of what is shown, every two seconds while the page is seen.
"use strict";
(() => {
  const every = 2000;
  const live = ["node", "list", "service"]; // elements that are kept up to date, by their ids
  const updates = document.getElementById("updates");
  const said = document.createElement("span");
  const button = document.createElement("button");
  button.type = "button";
  updates.append(said, button);
  let paused = false;
  let timer = 0;
  let asking = false;

  const attributes = (from, to) => {
    for (const { name } of [...from.attributes]) {
      if (!to.hasAttribute(name)) from.removeAttribute(name);
    }
    for (const { name, value } of to.attributes) {
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
  };

  // morph makes one node like another, and keeps what is the same, so that focus and selection stay.
  const morph = (from, to) => {
    if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
      from.replaceWith(document.importNode(to, true));
      return;
    }
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
      return;
    }
    attributes(from, to);
    const old = [...from.childNodes];
    const now = [...to.childNodes];
    for (let i = 0; i < now.length; i++) {
      if (i < old.length) morph(old[i], now[i]);
      else from.append(document.importNode(now[i], true));
    }
    for (const left of old.slice(now.length)) left.remove();
  };

  const show = (text) => {
    if (said.textContent !== text) said.textContent = text;
  };

  const refresh = async () => {
    timer = 0;
    asking = true;
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(10000) });
      if (!answer.ok) throw new Error(String(answer.status));
      const text = await answer.text();
      if (paused) return;
      const page = new DOMParser().parseFromString(text, "text/html");
      for (const id of live) {
        const from = document.getElementById(id);
        const to = page.getElementById(id);
        if (from && to) morph(from, to);
      }
      show("Live");
      updates.classList.remove("lost");
    } catch {
      if (paused) return;
      show("No answer");
      updates.classList.add("lost");
    } finally {
      asking = false;
      next();
    }
  };

  const next = () => {
    if (!timer && !asking && !paused && !document.hidden) timer = setTimeout(refresh, every);
  };

  const label = () => {
    button.textContent = paused ? "Resume" : "Pause";
    button.setAttribute("aria-label", paused ? "Resume updates" : "Pause updates");
  };

  button.addEventListener("click", () => {
    paused = !paused;
    label();
    show(paused ? "Paused" : "Live");
    if (paused) {
      clearTimeout(timer);
      timer = 0;
    } else if (!timer && !asking) {
      refresh();
    }
  });

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      clearTimeout(timer);
      timer = 0;
    } else if (!paused && !timer && !asking) {
      refresh();
    }
  });

  // As on other sites, / leads to the search.
  document.addEventListener("keydown", (event) => {
    const search = document.getElementById("q");
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "/" && search && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      search.focus();
      search.select();
    }
    if (event.key === "Escape" && typing) event.target.blur();
  });

  label();
  if (live.some((id) => document.getElementById(id))) {
    show("Live");
    next();
  } else {
    button.remove();
  }
})();
