// Runs the conformance suite on thread ranks.
#include "comm/fixture.h"

namespace dtensor::test {

void on_ranks(int ranks, const std::function<void(Communicator)>& body) { run_local(ranks, body); }

}  // namespace dtensor::test
