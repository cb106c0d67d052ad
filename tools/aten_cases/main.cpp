// Runs recorded calls of ATen operators under all placements. Prints for each operator how many pass, are wrong or
// throw. Exit status 1 unless all pass.
#include "aten_cases/program.h"

int main(int argc, char** argv) { return dtensor::cases::run_program(argc, argv); }
