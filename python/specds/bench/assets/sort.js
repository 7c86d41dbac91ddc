// Sorts the table by the column whose title is pressed.
for (const [column, head] of [...document.querySelectorAll("thead th")].entries()) {
  head.firstChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    document.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = document.querySelector("tbody"), rows = [...body.rows];
    const key = (row) => row.cells[column].dataset.of ?? "";
    rows.sort((a, b) => key(a).localeCompare(key(b), "en", { numeric: true }) * (down ? -1 : 1));
    body.append(...rows);
  });
}
