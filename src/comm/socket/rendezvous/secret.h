// The secret of a job, with which its processes prove to each other that they belong to it.
#pragma once

#include <string>
#include <string_view>

#include "comm/socket/rendezvous/messages.h"

namespace dtensor::sockets {

// DTENSOR_SECRET, or the content of the file DTENSOR_SECRET_FILE without line ends at its end; empty: none. Throws
// LaunchError if both are set, or if the file is empty or cannot be read.
std::string job_secret();

// HMAC-SHA256 by OpenSSL, whose libcrypto is loaded on first use. Throws CommError if it cannot be loaded.
Digest keyed_digest(const std::string& secret, std::string_view text);
// Compares in a time that does not depend on the contents.
bool equal_digests(const Digest& a, const Digest& b);

// From the system's generator.
void fill_random(void* data, std::size_t bytes);

}  // namespace dtensor::sockets
