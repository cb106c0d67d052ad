#include "program.h"

int main(int argc, char** argv) { return plan::run_program(argc, argv); }
