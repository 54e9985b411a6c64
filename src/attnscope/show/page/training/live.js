// A run that is still training: what the server adds to it, and the connection to the server.

const RETRY = 3000; // milliseconds until a refused connection is tried again
let connected = null; // null without a server
let source = null;
let drawn = true; // whether the page shows all that it was sent

const STATUSES = {
  training: "training",
  finished: "finished",
  failed: "ended by an error",
  stopped: "stopped: nothing was written for a while, and the run was not closed",
};

/** Whether nothing more will come. */
function isOver(status) {
  return status === "finished" || status === "failed";
}

/** The line on top: whether the run goes on, and whether this page follows it. */
function drawLive() {
  const { status, updated } = runs[0].data;
  const following = connected === null ? (status === "training" ? " when this page was made; attnscope serve follows it live" : "") : connected ? (isOver(status) ? "" : ", live") : "; the connection to the server is lost, trying again";
  byId("live").className = `live ${connected === false ? "lost" : status}`;
  byId("live").textContent = `${capitalized(STATUSES[status])}${following}. Last written ${visible(updated).replace("T", " ").slice(0, 19)} UTC.`;
}

/** Draw what was added; a hidden page waits until it is looked at. */
function drawAdded() {
  if (document.hidden) {
    drawn = false;
    return;
  }
  drawn = true;
  if (view.following) view.group = runs[0].last;
  drawAll();
}

/** Read everything again: the page has too many steps, or the run went back to an earlier one. */
async function readAgain() {
  const step = runs[0].groups[view.group];
  const answer = await fetch(page.links.data);
  if (!answer.ok) throw new Error(await answer.text());
  runs[0] = new TrainingRun(await unpack(await answer.text()));
  view.group = view.following ? runs[0].last : runs[0].nearest(step);
  drawAdded();
}

function follow() {
  source = new EventSource(`${page.links.events}?since=${encodeURIComponent(runs[0].data.position)}`);
  const connection = (open) => { connected = open; drawLive(); };
  source.addEventListener("open", () => connection(true));
  source.addEventListener("added", (event) => {
    const update = JSON.parse(event.data);
    runs[0].data.position = event.lastEventId;
    if (runs[0].append(update)) drawAdded();
    else again();
    if (isOver(update.status)) source.close();
  });
  source.addEventListener("again", again);
  source.addEventListener("gone", () => { source.close(); connection(false); announce("The run was deleted or renamed."); });
  source.addEventListener("error", () => {
    connection(false);
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, RETRY);
  });
}

/** Read everything, and follow from there. */
async function again() {
  source.close();
  try {
    await readAgain();
    if (!isOver(runs[0].data.status)) follow();
  } catch (error) {
    announce(`The run cannot be read any more: ${error.message}`);
  }
}

document.addEventListener("visibilitychange", () => { if (!drawn) drawAdded(); });
