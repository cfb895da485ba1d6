// Package reference writes the reference pages of docs/reference, and the table of reset codes in docs/troubleshoot.md.
// A page is a template (templates/*.md) whose rows are the program's own tables: flags, fields, policies, metrics,
// Events, commands and routes. So a row that is added there has its row in a page, or the test of this package fails.
//
// "make docs" writes all pages. Prose belongs into the templates.
//
// Nothing of the program imports it.
package reference
