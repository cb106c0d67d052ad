// What programs of this folder do with their flags and with errors.
#pragma once

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>

#include "dtensor/launch.h"

namespace dtensor {

// Exit status: of run(), 0 or 1 where something does not hold; 2 for a mistake in flags or input, with its text.
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
