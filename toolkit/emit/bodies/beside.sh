case ${BASH_SOURCE[0]} in
  -*/*) directory=./${BASH_SOURCE[0]%/*} ;;
  */*) directory=${BASH_SOURCE[0]%/*} ;;
  *) directory=. ;;
esac
directory=${directory:-/}
output_directory=$directory/run
