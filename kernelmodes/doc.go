// Package kernelmodes has what the engines of the packages below share: whose connections
// get this node as their source, and which traffic is that of pods.
package kernelmodes
