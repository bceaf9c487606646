// A table or a line of code that is too wide scrolls; the keyboard reaches it too.
const reachWideBlocks = () => {
  const blocks = ".md-typeset__scrollwrap, .md-typeset pre, .md-typeset pre > code";
  for (const block of document.querySelectorAll(blocks)) {
    if (block.scrollWidth > block.clientWidth) block.tabIndex = 0;
    else block.removeAttribute("tabindex");
  }
};
document$.subscribe(reachWideBlocks);
addEventListener("resize", reachWideBlocks);
