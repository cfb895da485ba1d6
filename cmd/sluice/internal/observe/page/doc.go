// Package page shows the running process to people, as pages of HTML: the node and its Services, one Service, and what
// has changed lately. They are made of what the API has, and of the rates and samples of package history.
//
// Pages are whole without JavaScript: tables, links, forms of method GET, and pictures drawn here as SVG. The one
// script asks for the same page every 2 s while it is seen, and puts what is different in place. Everything is embedded
// and from here. Styles are part of each page, which its policy allows by their hash; no others are, and no scripts.
// Names are what objects say; writer.put escapes them, and its type literal keeps them from being anything else than
// text.
//
// A page has at most 50 rows. Of 10,000 Services it costs what a look at all their counters and a sort cost, and that
// once a second however many ask.
//
// Goroutines: none; who serves the handler has them.
package page
