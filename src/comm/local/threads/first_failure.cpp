// Decides which failure is reported: the first one, unless a peer's failure only reported an earlier one of a rank.
#include "comm/local/threads/first_failure.h"

#include <stdexcept>
#include <string>

#include "comm/error_messages.h"

namespace dtensor::local {
namespace {

enum class Origin { own, peer, communication };

// Must be called in an exception handler.
Origin current_origin() {
  try {
    throw;
  } catch (const PeerError&) {
    return Origin::peer;
  } catch (const CommError&) {
    return Origin::communication;
  } catch (...) {
    return Origin::own;
  }
}

}  // namespace

void FirstFailure::record_current(int rank) {
  std::lock_guard lock(mutex_);
  const Origin origin = current_origin();
  if (result_.error && !(reported_ && origin == Origin::own)) return;
  result_ = {rank, std::current_exception()};
  reported_ = origin == Origin::peer;
}

void rethrow(const RunResult& failed) {
  const std::string who = "rank " + std::to_string(failed.rank);
  try {
    std::rethrow_exception(failed.error);
  } catch (c10::Error& e) {
    e.add_context("on " + who);
    throw;
  } catch (const CommError& e) {
    throw CommError(who + ": " + e.what());
  } catch (...) {
    throw std::runtime_error(who + ": " + current_exception_text());
  }
}

}  // namespace dtensor::local
