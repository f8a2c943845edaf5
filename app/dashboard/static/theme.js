// The chosen colours, before the first thing is painted: the system's, light or dark. The browser remembers the choice.
"use strict";

const THEME = "scrimp-theme";
const root = document.documentElement;

function wear(theme) {
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  else delete root.dataset.theme;
}

function remembered() {
  try {
    return localStorage.getItem(THEME) ?? "system";
  } catch {
    return "system"; // the browser keeps nothing
  }
}

root.classList.add("scripted");
wear(remembered());
addEventListener("storage", (event) => event.key === THEME && wear(event.newValue)); // chosen in another tab
addEventListener("DOMContentLoaded", () => {
  const choice = document.getElementById("theme");
  choice.value = root.dataset.theme ?? "system";
  choice.addEventListener("change", () => {
    wear(choice.value);
    try {
      localStorage.setItem(THEME, choice.value);
    } catch {
      // worn, but not remembered
    }
  });
});
