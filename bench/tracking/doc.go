// Package tracking keeps the kernel's connection tracking from deciding what a measurement shows. A load of short
// connections leaves entries behind. In a full table new connections are dropped, whatever proxy is measured, and the
// figures are those of the table.
package tracking
