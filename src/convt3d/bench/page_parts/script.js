"use strict";
const root = document.documentElement;
window.addEventListener("error", (event) => { root.dataset.errors = (root.dataset.errors || "") + event.message; });

// Buttons choose which suite's cards and rows are shown.
const buttons = [...document.querySelectorAll("nav button")];
for (const button of buttons) {
  button.addEventListener("click", () => {
    for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
    for (const part of document.querySelectorAll("[data-suite]")) {
      part.hidden = button.value !== "" && part.dataset.suite !== button.value;
    }
  });
}

// A click on a column's head sorts by it, a second click the other way round.
for (const [column, button] of [...document.querySelectorAll("#figures th button")].entries()) {
  button.addEventListener("click", () => {
    const body = document.querySelector("#figures tbody");
    const falling = button.dataset.sorted === "up";
    const key = (row) => {
      const cell = row.children[column];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    };
    const sorted = [...body.children].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      const order = typeof x === typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x === "number" ? -1 : 1;
      return falling ? -order : order;
    });
    body.append(...sorted);
    button.dataset.sorted = falling ? "down" : "up";
  });
}

root.dataset.cases = String(JSON.parse(document.querySelector("#rows").textContent).length);
