// Fault injection for checkpoints (docs/reliability.md): killed processes, damaged bytes, and concurrent programs.
// tests/faults runs a few trials of each; this program runs any number:
//   faults kills --trials 500 --over mpi; faults corruptions --trials 2000; faults rivals --trials 50
#include "faults/program.h"

int main(int argc, char** argv) { return dtensor::faults::run_program(argc, argv); }
