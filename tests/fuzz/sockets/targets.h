// Fuzz targets: what arrives at the sockets of a rank is decided by bytes of a fuzzer. Each target drives the code that
// a job runs, over a socket pair, and aborts if a property of that code does not hold.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtensor::fuzz {

// A connected peer: frames with arbitrary fields and bytes while messages are posted. Nothing but the buffers of
// matching messages is written, and the job ends with an error or goes on.
void fuzz_frames(const std::uint8_t* data, std::size_t size);

// Strangers and ranks at rank 0: only who proves the secret is admitted, and only who has a token becomes a peer.
void fuzz_admission(const std::uint8_t* data, std::size_t size);

// A server at the address of rank 0: joining ends with members or without, or with a CommError.
void fuzz_join(const std::uint8_t* data, std::size_t size);

}  // namespace dtensor::fuzz
