// Exceptions become status codes; one rank's invalid argument becomes an error of all ranks.
#include "c/status.h"

#include <c10/util/Exception.h>

#include <new>
#include <vector>

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

constexpr char kError = '!', kDescription = '=';

// A description of this rank's arguments, or the error that they have.
std::string outcome(const std::function<std::string()>& describe) {
  try {
    return kDescription + describe();
  } catch (const c10::Error& error) {
    return kError + std::string(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return kError + std::string(error.what());
  }
}

void check_outcomes(const std::vector<std::string>& outcomes) {
  const bool alone = outcomes.size() == 1;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    TORCH_CHECK_VALUE(outcomes[rank][0] != kError, alone ? "" : "rank " + std::to_string(rank) + ": ",
                      outcomes[rank].substr(1));
  }
  for (std::size_t rank = 1; rank < outcomes.size(); ++rank) {
    TORCH_CHECK_VALUE(outcomes[rank] == outcomes[0], "expected equal arguments on all ranks, got ",
                      outcomes[0].substr(1), " on rank 0 and ", outcomes[rank].substr(1), " on rank ", rank);
  }
}

}  // namespace

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

void agree(const Communicator& ranks, const std::function<std::string()>& describe) {
  const std::string mine = outcome(describe);
  check_outcomes(ranks.size() == 1 ? std::vector{mine} : all_gather_strings(ranks, mine));
}

}  // namespace dtensor::c

const char* dtensor_last_error(void) { return dtensor::c::last_error.c_str(); }
