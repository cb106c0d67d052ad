// Campaigns of faults against checkpoints (docs/reliability.md): processes killed, bytes damaged, programs in each
// other's way. tests/faults runs a few trials of each; by hand, as many as wanted:
//   faults kills --trials 500 --over mpi; faults corruptions --trials 2000; faults rivals --trials 50
#include "faults/program.h"

int main(int argc, char** argv) { return dtensor::faults::run_program(argc, argv); }
