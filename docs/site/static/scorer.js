// Order of the site's search results: pages of the guide, then other pages, then names of the references.
var Scorer = {
  score: ([docname, title, anchor, descr, score]) => score + (/^(guide\/|python$|index$)/.test(docname) ? 30 : 0),
  objNameMatch: 11,
  objPartialMatch: 3,
  objPrio: {0: 5, 1: 2, 2: -5},
  objPrioDefault: 0,
  title: 25,
  partialTitle: 15,
  term: 5,
  partialTerm: 2,
};
