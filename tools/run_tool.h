// Flags and error handling of the programs in this folder.
#pragma once

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>

#include "dtensor/launch.h"

namespace dtensor {

// Returns the exit status: that of run(), 0 or 1 if a check failed; 2 for invalid flags or input, with an error text.
inline int run_tool(CLI::App& app, int argc, char** argv, const std::function<int()>& run) {
  try {
    app.parse(argc, argv);
    return finish_output(run());
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? finish_output(0) : 2;
  } catch (const c10::Error& error) {
    std::cerr << app.get_name() << ": " << error.what_without_backtrace() << "\n";
  } catch (const std::exception& error) {
    std::cerr << app.get_name() << ": " << error.what() << "\n";
  }
  return 2;
}

}  // namespace dtensor
