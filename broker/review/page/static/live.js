// Tells that newer records match what is shown, and puts the page as the server renders it now in its place: at once for
// a reader who is at the top and busy with nothing, else when asked. Without this script a reload does the same.
"use strict";
(() => {
  let stream, note;

  function busy() {
    const active = document.activeElement;
    return window.scrollY > 40 || (active && active !== document.body && active.id !== "content") || document.querySelector("details[open]")
      || String(window.getSelection());
  }

  async function renew() {
    const answer = await fetch(location.href, { credentials: "same-origin", redirect: "error" });
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("content");
    if (fresh) document.getElementById("content").replaceWith(document.adoptNode(fresh));
    begin();
  }

  function tell(count) {
    if (!busy()) return void renew();
    if (!note) {
      note = document.createElement("p");
      note.className = "newer";
      note.setAttribute("role", "status");
      const button = document.createElement("button");
      button.type = "button";
      button.addEventListener("click", () => { window.scrollTo(0, 0); renew(); });
      note.append(button);
      document.querySelector("header").after(note);
    }
    note.firstChild.textContent = `${count >= 100 ? "100 or more" : count} newer ${count === 1 ? "record" : "records"}: show`;
  }

  function begin() {
    if (stream) stream.close();
    if (note) note.remove();
    note = undefined;
    const address = document.getElementById("content").dataset.live;
    if (!address) return;
    stream = new EventSource(address);
    stream.addEventListener("message", (event) => {
      const count = Number(event.data);
      if (count > 0) tell(count);
    });
  }

  begin();
})();
