"use strict";
(function () {
  var root = document.documentElement;
  root.classList.add("scripted");
  var button = document.getElementById("theme");
  button.addEventListener("click", function () {
    var dark = getComputedStyle(root).getPropertyValue("--theme").trim() === "dark";
    root.dataset.theme = dark ? "light" : "dark";
  });
  document.querySelectorAll("select.switch").forEach(function (choice) {
    var lines = choice.closest("details").querySelectorAll("path[data-client]");
    choice.addEventListener("change", function () {
      lines.forEach(function (line) {
        line.classList.toggle("chosen", line.dataset.client === choice.value);
        line.classList.toggle("faded", choice.value !== "" && line.dataset.client !== choice.value);
      });
    });
  });
})();
