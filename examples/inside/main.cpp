// A few steps of a small network, seen from inside.
//
//   inside --ranks 4 --explain --comms              why operators run as they do, and what a step communicates
//   inside --ranks 2 --loss-scale 4e9               half precision: steps that overflow are skipped, the scale falls
//   inside --ranks 2 --cpu-offload --device cuda    parameters, gradients and states in host memory
//   inside --ranks 2 --debug-rank 1                 rank 1 stops for a debugger first, the others wait
#include "program.h"

int main(int argc, char** argv) { return inside::run_program(argc, argv); }
