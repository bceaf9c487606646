"""The messages on the link between the coordinator and a worker. Both ends import this
package.
"""
