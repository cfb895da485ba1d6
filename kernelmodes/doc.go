// Package kernelmodes has what the engines of the packages below share: whose connections
// get this node as their source, which traffic is that of pods, and what chains are named after.
package kernelmodes
