// Training steps of a small network with reports of operators and communication.
//
//   inside --ranks 4 --explain --comms              explains operators and prints the communication of a step
//   inside --ranks 2 --loss-scale 4e9               half precision: steps that overflow are skipped, the scale drops
//   inside --ranks 2 --cpu-offload --device cuda    parameters, gradients and states in host memory
//   inside --ranks 2 --debug-rank 1                 rank 1 waits for a debugger, the other ranks wait for it
#include "program.h"

int main(int argc, char** argv) { return inside::run_program(argc, argv); }
