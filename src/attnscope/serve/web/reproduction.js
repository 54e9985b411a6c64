// The page of a reproduction: the paper's claims on this model, and the figures.

function drawReproduction({ name, run, figures, captions }) {
  const address = (file) => `/run/${encodeURIComponent(name)}/${file.split("/").map(encodeURIComponent).join("/")}`;
  const files = ["claims.md", "claims.json", "run.json"].map((file) => [element("a", { href: address(file) }, file), " "]);
  const { model, text, settings } = run;
  byId("top").replaceChildren(
    element("a", { class: "brand", href: "/" }, "attnscope: all runs"),
    element("h1", {}, `The paper, reproduced on ${shortName(model.name)}`),
    element("p", { class: "lead" }, `${plural(model.layers, "layer")}, ${plural(model.heads, "head")}. Measured on ${shortName(text.source)}, ${plural(settings.windows, "window")} of ${settings.lengths.at(-1).toLocaleString("en-US")} tokens, ${visible(run.finished).slice(0, 10)}.`),
    element("p", {}, files),
  );
  const readings = [...new Set(figures.map((file) => file.split("/")[1]))];
  byId("figures").replaceChildren(
    element("h2", { id: "figures-title" }, "Figures"),
    ...(readings.length ? readings.map((reading) => element(
      "section", {},
      element("h3", {}, visible(reading.replaceAll("-", " "))),
      element("div", { class: "figures" }, figures.filter((file) => file.split("/")[1] === reading).map((file) => picture(file, address(file), captions[file]))),
    )) : [element("p", { class: "soft" }, "None were drawn.")]),
  );
}

function picture(file, address, caption) {
  const title = visible(caption ?? file.split("/").at(-1).replace(/\.svg$/, "").replaceAll("-", " "));
  const image = element("img", { src: address, alt: title, loading: "lazy" });
  return element("figure", {}, element("a", { href: address }, image), element("figcaption", { class: "soft" }, title));
}

unpack(byId("data").textContent).then((data) => {
  runs[0] = { data };
  drawReproduction(data);
  drawClaims();
  document.documentElement.dataset.ready = "yes";
}).catch((error) => {
  byId("status").textContent = `The data of this page cannot be read: ${error.message}`;
});
