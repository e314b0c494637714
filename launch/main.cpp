// expertflow: every role and tool of the system as a subcommand.
#include "launch/commands.h"

int main(int argc, char** argv) {
  return expertflow::Main(argc, argv);
}
