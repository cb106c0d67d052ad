// Exceptions become status codes; one rank's invalid argument becomes an error of all ranks.
#include "c/status.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <new>
#include <sstream>
#include <vector>

#include "c/handles.h"
#include "internal/ranks/failed_call.h"
#include "object_collectives/object_collectives.h"

namespace dtensor::c {
namespace {

thread_local std::string last_error;

dtensor_status keep_error(dtensor_status status, const char* caller, const char* text) noexcept {
  try {
    last_error = std::string(caller) + ": " + text;
  } catch (...) {
    last_error.clear();
  }
  return status;
}

thread_local const char* function = "";

constexpr char kError = '!', kDescription = '=', kEnd = '\n';

// The function of this rank, and a description of its arguments or the error that they have.
std::string outcome(const std::function<std::string()>& describe) {
  const auto text = [](char kind, const std::string& rest) { return std::string(function) + kEnd + kind + rest; };
  try {
    return text(kDescription, describe());
  } catch (const c10::Error& error) {
    return text(kError, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return text(kError, error.what());
  }
}

struct Outcome {
  explicit Outcome(const std::string& text)
      : function(text.substr(0, text.find(kEnd))),
        kind(text[function.size() + 1]),
        rest(text.substr(function.size() + 2)) {}
  std::string function;
  char kind;
  std::string rest;
};

void check_outcomes(const std::vector<std::string>& texts) {
  const std::vector<Outcome> ranks(texts.begin(), texts.end());
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    if (ranks[rank].function == ranks[0].function) continue;
    throw CommError("ranks disagree: rank 0 called " + ranks[0].function + ", rank " + std::to_string(rank) +
                    " called " + ranks[rank].function);
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    TORCH_CHECK_VALUE(ranks[rank].kind != kError, ranks.size() == 1 ? "" : "rank " + std::to_string(rank) + ": ",
                      ranks[rank].rest);
  }
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    TORCH_CHECK_VALUE(texts[rank] == texts[0], "expected equal arguments on all ranks, got ", ranks[0].rest,
                      " on rank 0 and ", ranks[rank].rest, " on rank ", rank);
  }
}

}  // namespace

FunctionScope::FunctionScope(const char* name) : former_(function) { function = name; }
FunctionScope::~FunctionScope() { function = former_; }

dtensor_status report_current_exception(const char* caller) noexcept {
  try {
    throw;
  } catch (const CommError& error) {
    return keep_error(DTENSOR_COMMUNICATION, caller, error.what());
  } catch (const PeerError& error) {
    return keep_error(DTENSOR_COMMUNICATION, caller, error.what_without_backtrace());
  } catch (const c10::OutOfMemoryError& error) {
    return keep_error(DTENSOR_OUT_OF_MEMORY, caller, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return keep_error(DTENSOR_INVALID_ARGUMENT, caller, error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return keep_error(DTENSOR_OUT_OF_MEMORY, caller, "out of memory");
  } catch (const std::exception& error) {
    return keep_error(DTENSOR_INTERNAL, caller, error.what());
  } catch (...) {
    return keep_error(DTENSOR_INTERNAL, caller, "an exception of an unknown type");
  }
}

void count_failed_call(std::initializer_list<const void*> handles) noexcept {
  const auto* known = std::find_if(handles.begin(), handles.end(), [](auto h) { return bool(communicator_of(h)); });
  try {
    known == handles.end() ? report_failed_call(last_error) : report_failed_call(communicator_of(*known), last_error);
  } catch (const std::exception&) {  // the job has failed
  }
}

void agree(const Communicator& ranks, const std::function<std::string()>& describe) {
  const std::string mine = outcome(describe);
  check_outcomes(ranks.size() == 1 ? std::vector{mine} : all_gather_strings(ranks, mine));
}

void agree_on_switch(const Communicator& ranks, int on) {
  agree(ranks, [&] {
    TORCH_CHECK_VALUE(on == 0 || on == 1, "expected 0 or 1, got ", on);
    return std::to_string(on);
  });
}

std::string digits(double number) {
  std::ostringstream text;
  text.precision(17);
  text << number;
  return text.str();
}

}  // namespace dtensor::c

const char* dtensor_last_error(void) { return dtensor::c::last_error.c_str(); }
